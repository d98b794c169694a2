#!/bin/sh
# Makes the user of the service, on systems with systemd.
set -e
if command -v systemd-sysusers >/dev/null; then
	systemd-sysusers ${DPKG_ROOT:+--root="$DPKG_ROOT"} agentmesh.conf
fi
