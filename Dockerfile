# crtlib on a CPU: docker build -t crtlib . && docker run --rm -v "$PWD":/work crtlib --help
FROM python:3.11-slim

# PyTorch without CUDA: the other build takes several gigabytes more.
COPY constraints.txt /tmp/constraints.txt
RUN pip install --no-cache-dir -c /tmp/constraints.txt torch \
    --index-url https://download.pytorch.org/whl/cpu

COPY . /src
RUN pip install --no-cache-dir -c /tmp/constraints.txt "/src[hub,peft,dedup]" && rm -rf /src

RUN useradd --create-home crtlib
USER crtlib
WORKDIR /work
ENTRYPOINT ["crtlib"]
CMD ["--help"]
