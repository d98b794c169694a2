package main

import (
	"runtime"
	"runtime/debug"

	"github.com/agentmesh/agentmesh/node/wire"
)

type versionCmd struct {
	JSON bool `help:"Print the result as JSON."`
}

// buildInfo is what a version says.
type buildInfo struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Protocol string `json:"protocol"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func thisBuild() buildInfo {
	b := buildInfo{Version: "devel", Protocol: wire.Version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		b.Version = v
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			b.Commit = s.Value
		}
	}
	return b
}

func (c *versionCmd) Run(a *app) error {
	b := thisBuild()
	if c.JSON {
		return a.json(b)
	}
	a.print("agentmesh %s, AgentMesh %s-draft, %s, %s", b.Version, b.Protocol, b.Go, b.Platform)
	return nil
}
