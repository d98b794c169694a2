// Package openclaw embeds the skill that teaches an OpenClaw agent to use AgentMesh. `agentmesh skill` installs it.
package openclaw

import _ "embed"

// Skill is the content of SKILL.md.
//
//go:embed SKILL.md
var Skill []byte
