# crtlib on a CPU: docker build -t crtlib . && docker run --rm -v "$PWD":/work crtlib --help
FROM python:3.11-slim
ENV PIP_NO_CACHE_DIR=1 PIP_NO_DEPS=1

# PyTorch without CUDA: the other build takes several gigabytes more.
WORKDIR /src
COPY lock.txt .
RUN grep -E '# (.* )?library( |$)' lock.txt > /tmp/library.txt && pip install --require-hashes -r /tmp/library.txt \
    && pip install --index-url https://download.pytorch.org/whl/cpu "$(grep -o '^torch==[^ ]*' lock.txt)"

COPY . .
RUN pip install .

RUN useradd --create-home crtlib
USER crtlib
WORKDIR /work
ENTRYPOINT ["crtlib"]
CMD ["--help"]
