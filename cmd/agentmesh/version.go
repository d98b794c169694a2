package main

import (
	"context"
	"runtime"
	"runtime/debug"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/node/wire"
)

// version, commit and date are set by the linker in a release (.ci/releasetool), because its build has no version control
// information.
var version, commit, date string

type versionCmd struct{}

func thisBuild() daemon.Build {
	b := daemon.Build{Version: "devel", Protocol: wire.Version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if version != "" {
		b.Version, b.Commit, b.Date = version, commit, date
		return b
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		b.Version = v
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.time":
			b.Date = s.Value
		}
	}
	return b
}

func (c *versionCmd) Run(_ context.Context, a *app) error {
	b := thisBuild()
	if a.globals.JSON {
		return a.JSON(b)
	}
	commitText := ""
	if len(b.Commit) >= 12 {
		commitText = " (" + b.Commit[:12] + ")"
	}
	a.Print("agentmesh %s%s, AgentMesh %s-draft, %s, %s", b.Version, commitText, b.Protocol, b.Go, b.Platform)
	return nil
}
