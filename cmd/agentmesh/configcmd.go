package main

import (
	"cmp"
	"context"
	"slices"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/node/httpapi"
)

type configCmd struct {
	Check configCheckCmd `cmd:"" default:"withargs" help:"Check the configuration and list the guards that it turns off or loosens."`
}

type configCheckCmd struct {
	serverFlags
}

type configReport struct {
	File    string   `json:"file"`
	Profile string   `json:"profile"`
	Opened  []string `json:"opened"` // keys that switch off a protection or weaken it (AM-82)
	Unknown []string `json:"unknown_environment,omitempty"`
	Missing []string `json:"missing_programs,omitempty"`
	Files   []string `json:"missing_files,omitempty"`
}

func (c *configCheckCmd) Run(_ context.Context, a *app) error {
	a.server = c.serverFlags
	src, err := a.source()
	if err != nil {
		return err
	}
	cfg, err := src.LoadAndCheck(daemon.LinkKinds())
	if err != nil {
		return err
	}
	dir, err := a.dataDir()
	if err != nil {
		return err
	}
	report := configReport{File: src.File, Profile: cfg.Profile(), Opened: cfg.OpenGuards(), Unknown: config.UnknownEnv(a.environ), Missing: src.MissingPrograms(cfg), Files: src.MissingFiles(cfg)}
	for key, file := range map[string]string{"agent_door.socket": cfg.AgentDoor.Socket, "agent_door.token_file": cfg.AgentDoor.TokenFile} {
		if file == "" {
			continue
		}
		if err := httpapi.CheckOutside(dir, src.ResolvePath(file)); err != nil {
			report.Files = append(report.Files, key+": "+err.Error())
		}
	}
	report.Opened = append([]string{}, report.Opened...) // a JSON list, never null
	err = a.report(report, func() {
		a.Print("ok: %s profile", report.Profile)
		for _, o := range report.Opened {
			a.Print("guard opened: %s", o)
		}
		for _, name := range report.Unknown {
			a.Note("the environment variable %s sets nothing", name)
		}
		for _, m := range slices.Concat(report.Missing, report.Files) {
			a.Note("%s", terminal.Clean(m))
		}
	})
	return cmp.Or(err, exit.Unless(len(report.Missing)+len(report.Files) == 0, exit.Config))
}
