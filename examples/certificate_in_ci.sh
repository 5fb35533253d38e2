#!/bin/sh
# A model leaves only with a certificate that holds: for a CI job, or before an upload.
#
#     examples/certificate_in_ci.sh talk.jsonl out      # without a corpus: a simulated one
#
# certify ends with 4 where the certificate is void; certify --verify also where the model, the page
# or the evidence is not what was certified. `set -e` then ends the job.
set -e
out=${2:-$(mktemp -d)}
mkdir -p "$out"
corpus=$1
if [ -z "$corpus" ]; then
  corpus=$out/talk.jsonl
  crtlib simulate --dialogues 100 --seed 0 --out "$corpus" --quiet
fi
crtlib train "$corpus" --policy regex:customersim --unit turn --epsilon 3 --epochs 1 \
  --out "$out/model" --quiet
crtlib certify "$out/model" --out "$out/certificate.html"
crtlib certify "$out/model" --out "$out/certificate.html" --verify

# What another put in place of the weights is no model of this certificate.
printf x >> "$out/model/model.safetensors"
if crtlib certify "$out/model" --out "$out/certificate.html" --verify; then
  echo "changed weights were accepted" >&2
  exit 1
fi
