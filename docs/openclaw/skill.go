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

// SkillFor returns the skill whose commands use the agent's door at a socket, which decides nothing. The commands that
// the owner runs stay as they are.
func SkillFor(socket string) []byte {
	door := "agentmesh --agent-socket '" + strings.ReplaceAll(socket, "'", `'\''`) + "' "
	return []byte(strings.NewReplacer(
		"`agentmesh page`", "`agentmesh page`", "`agentmesh doctor`", "`agentmesh doctor`",
		"\nagentmesh ", "\n"+door, "`agentmesh ", "`"+door,
	).Replace(string(Skill)))
}
