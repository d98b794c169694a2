// Package openclaw embeds the skill that teaches an OpenClaw agent to use AgentMesh. `agentmesh skill` installs it.
package openclaw

import (
	_ "embed"
	"strings"
)

// Skill is the content of SKILL.md.
//
//go:embed SKILL.md
var Skill []byte

// SkillFor returns the skill whose commands use the agent's door at a socket, which decides nothing.
func SkillFor(socket string) []byte {
	quoted := "'" + strings.ReplaceAll(socket, "'", `'\''`) + "'"
	text := strings.ReplaceAll(string(Skill), "\nagentmesh ", "\nagentmesh --agent-socket "+quoted+" ")
	return []byte(strings.ReplaceAll(text, "`agentmesh reply ", "`agentmesh --agent-socket "+quoted+" reply "))
}
