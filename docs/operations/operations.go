// Package operations embeds the systemd unit, which agentmesh quickstart adapts to a machine.
package operations

import _ "embed"

// Unit is the content of agentmesh.service.
//
//go:embed agentmesh.service
var Unit []byte
