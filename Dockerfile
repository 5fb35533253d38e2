# crtlib on a CPU: docker build -t crtlib . && docker run --rm -v "$PWD":/work crtlib --help
FROM python:3.11-slim

# PyTorch without CUDA: the other build takes several gigabytes more.
WORKDIR /src
COPY constraints.txt .
RUN pip install --no-cache-dir -c constraints.txt torch \
    --index-url https://download.pytorch.org/whl/cpu

COPY . .
RUN pip install --no-cache-dir -c constraints.txt ".[all]"

RUN useradd --create-home crtlib
USER crtlib
WORKDIR /work
ENTRYPOINT ["crtlib"]
CMD ["--help"]
