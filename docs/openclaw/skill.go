// Package openclaw holds the skill that teaches an OpenClaw agent to use AgentMesh, for the command that installs it.
package openclaw

import _ "embed"

// Skill is SKILL.md.
//
//go:embed SKILL.md
var Skill []byte
