#!/bin/bash
# Puts Apptainer into the folder PREFIX, for the tests, and changes nothing else on this machine.
#
#     tests/tools/apptainer.sh PREFIX
#
# Debian has Apptainer in its newest suite alone, built for a C library that is newer than most machines'. So the
# packages are fetched from this machine's own archive and unpacked, not installed, and the two programs are told
# (patchelf) to use the C library that lies beside them. Nothing is fetched when PREFIX has one that runs.
set -euo pipefail

prefix=$(realpath -m -- "${1:?usage: apptainer.sh PREFIX}")
[[ -x $prefix/bin/apptainer ]] && "$prefix/bin/apptainer" --version 2>/dev/null && exit 0

for program in apt-get dpkg patchelf mksquashfs; do
  command -v "$program" >/dev/null || { echo "apptainer.sh: $program is missing" >&2; exit 1; }
done
[[ $(dpkg --print-architecture) == amd64 ]] || { echo "apptainer.sh: only amd64 was tried" >&2; exit 1; }

keyring=/usr/share/keyrings/debian-archive-keyring.gpg
archive=$(
  cat /etc/apt/sources.list /etc/apt/sources.list.d/*.{list,sources} 2>/dev/null |
    grep -Eo '(https?|file|copy|mirror[^ ]*):/[^ ]*/debian/?( |$)' | head -n 1
) || true
[[ -r $keyring && -n $archive ]] || { echo "apptainer.sh: apt here knows no archive of Debian's" >&2; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{lists/partial,archives/partial,debs}

# An apt of its own: of this machine's it takes the archive's address and key, and leaves its lists alone.
for suite in stable unstable; do
  echo "deb [signed-by=$keyring] $archive $suite main"
done >"$work/sources.list"
cat >"$work/apt.conf" <<END
Dir::Etc::SourceList "$work/sources.list";
Dir::Etc::SourceParts "-";
Dir::State::Lists "$work/lists";
Dir::Cache "$work";
APT::Sandbox::User "root";
Acquire::Languages "none";
END
export APT_CONFIG=$work/apt.conf
apt-get -qq update
cd "$work/debs"
apt-get -qq download apptainer/unstable libc6/stable
for package in apptainer libc6; do
  dpkg -x "$work"/debs/"$package"_*.deb "$work/$package"
done
from=$work/apptainer
libraries=lib/x86_64-linux-gnu

# What is half there is nothing: it gets its name only once it is whole. But the programs find themselves by that name.
rm -rf "$prefix"
mkdir -p "$prefix"/{bin,libc,etc,"$libraries",var/lib/apptainer/mnt/session}
cp -a "$from/usr/$libraries/apptainer" "$prefix/$libraries/"
cp -a "$from/etc/apptainer" "$prefix/etc/"
cp -a "$from/usr/bin/apptainer" "$prefix/bin/.apptainer"
for library in ld-linux-x86-64.so.2 libc.so.6 libm.so.6 libpthread.so.0 libdl.so.2 librt.so.1 libresolv.so.2 \
  libnss_files.so.2 libnss_dns.so.2; do
  cp -aL "$work/libc6/usr/$libraries/$library" "$prefix/libc/"
done
ln -s ../etc "$prefix/lib/etc" # where its second program looks for its settings,
ln -s ../var "$prefix/lib/var" # and mounts
for program in "$prefix/bin/.apptainer" "$prefix/$libraries/apptainer/bin/starter"; do
  patchelf --set-interpreter "$prefix/libc/ld-linux-x86-64.so.2" "$program"
  patchelf --force-rpath --set-rpath "$prefix/libc" "$program"
done
# A root without CAP_SYS_RESOURCE, as in many a virtual machine, cannot have the capabilities of "full".
sed -i 's/^root default capabilities = .*/root default capabilities = no/' "$prefix/etc/apptainer/apptainer.conf"
ln -s apptainer "$prefix/bin/singularity"
mv "$prefix/bin/.apptainer" "$prefix/bin/apptainer"
"$prefix/bin/apptainer" --version
