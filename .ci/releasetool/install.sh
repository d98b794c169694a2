#!/bin/sh
# Installs agentmesh {{.Version}} for this user. It downloads the archive for this machine, verifies the signature of the
# checksums and the checksum of the archive, and puts the program into ~/.local/bin, or into the folder that INSTALL_DIR names.
# It changes nothing else. An upgrade is the same with a newer version; to uninstall, remove the program. The data of your
# agent stays where it is.
set -eu

main() {
	url=${INSTALL_URL:-'{{.URL}}'}
	bin=${INSTALL_DIR:-$HOME/.local/bin}
	case $(uname -s) in
	Linux) os=linux ;;
	Darwin) os=darwin ;;
	*) fail "there is no archive for $(uname -s) here; see $url" ;;
	esac
	case $(uname -m) in
	x86_64 | amd64) arch=amd64 ;;
	aarch64 | arm64) arch=arm64 ;;
	*) fail "there is no archive for $(uname -m); build it from source" ;;
	esac
	name=agentmesh_{{.Version}}_${os}_${arch}
	archive=$name.tar.gz
	dir=$(mktemp -d)
	trap 'rm -rf "$dir"' EXIT

	get SHA256SUMS
	get SHA256SUMS.sig
	get "$archive"
	command -v ssh-keygen >/dev/null || fail "ssh-keygen, which verifies the signature, is missing: install OpenSSH"
	echo 'releases {{.Signer}}' >"$dir/signers"
	ssh-keygen -Y verify -f "$dir/signers" -I releases -n {{.Namespace}} -s "$dir/SHA256SUMS.sig" <"$dir/SHA256SUMS" >/dev/null ||
		fail "the signature of the checksums is wrong; nothing was installed"
	want=$(awk -v name="$archive" '$2 == name { print $1 }' "$dir/SHA256SUMS")
	have=$( (sha256sum "$dir/$archive" 2>/dev/null || shasum -a 256 "$dir/$archive") | cut -d ' ' -f 1)
	[ -n "$want" ] && [ "$want" = "$have" ] || fail "the checksum of $archive is wrong; nothing was installed"

	tar -C "$dir" -xzf "$dir/$archive" "$name/agentmesh"
	mkdir -p "$bin"
	cp "$dir/$name/agentmesh" "$bin/.agentmesh.new"
	"$bin/.agentmesh.new" version || { rm -f "$bin/.agentmesh.new"; fail "the program does not run on this machine; nothing was installed"; }
	mv "$bin/.agentmesh.new" "$bin/agentmesh" # a process that runs the old program keeps it
	echo "installed $bin/agentmesh"
	case :$PATH: in
	*:"$bin":*) ;;
	*) echo "add it to your path: export PATH=\"\$PATH:$bin\"" ;;
	esac
}

fail() {
	echo "install: $*" >&2
	exit 1
}

# get downloads a file of the release into $dir.
get() {
	if command -v curl >/dev/null; then
		curl -fsSL -o "$dir/$1" "$url/$1"
	else
		wget -qO "$dir/$1" "$url/$1"
	fi || fail "cannot download $url/$1"
}

main # the last line, so that half a script does nothing
