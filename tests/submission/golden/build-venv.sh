#!/bin/bash
# Written by Serried: building venv from requirements.txt
prefix='/home/ada/it'"'"'s mine/.serried/environments/venv-0123456789ab-c5d3'
set -e
cd -- '/home/ada/it'"'"'s mine'
python3.11 -m venv --clear "$prefix"
"$prefix/bin/python" -I -m pip install --disable-pip-version-check --no-input --extra-index-url https://download.pytorch.org/whl/cu126 --requirement requirements.txt
