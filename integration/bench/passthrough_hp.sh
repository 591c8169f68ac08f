#!/usr/bin/env bash
# Usage: passthrough_hp.sh DIR
# Builds libfuse's example passthrough_hp into DIR, for run.sh and work.sh, which find it in PATH. Debian's libfuse3-dev has
# the library but not this example, so its source package is downloaded too. Nothing is installed, and apt's own lists stay
# as they are. Needs Debian, apt-get, g++, and 25 MB of room in the temporary directory.
set -euo pipefail
[ $# -eq 1 ] && [ -d "$1" ] || { sed -n '2,/^set/s/^#\( \|$\)\?//p' "$0" >&2; exit 2; }
to=$(realpath "$1")
cd "$(mktemp -d)"
trap 'rm -rf "$PWD"' EXIT
mkdir -p lists/partial cache/archives/partial fuse root
echo "deb-src http://deb.debian.org/debian $(. /etc/os-release; echo "$VERSION_CODENAME") main" >sources.list
apt-get download -q libfuse3-dev
apt=(apt-get -q -o Dir::Etc::SourceList="$PWD/sources.list" -o Dir::Etc::SourceParts=/dev/null
	-o Dir::State::Lists="$PWD/lists" -o Dir::Cache="$PWD/cache" -o APT::Sandbox::User=root)
"${apt[@]}" update
"${apt[@]}" source --download-only fuse3
tar xf fuse3_*.orig.tar.?z -C fuse --strip-components=1 --wildcards '*/example/*'
dpkg-deb -x libfuse3-dev_*.deb root
g++ -O2 -std=c++17 -DHAVE_UTIMENSAT -DHAVE_POSIX_FALLOCATE -DHAVE_SETXATTR -DHAVE_SYS_XATTR_H -Iroot/usr/include/fuse3 \
	-o "$to/passthrough_hp" fuse/example/passthrough_hp.cc root/usr/lib/*/libfuse3.a -lpthread -ldl
