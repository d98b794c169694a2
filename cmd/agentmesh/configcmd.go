package main

import "slices"

type configCmd struct {
	Check configCheckCmd `cmd:"" help:"Check the configuration and list the guards that it opens."`
}

type configCheckCmd struct {
	JSON bool `help:"Print the result as JSON."`
}

// configReport is the result of config check.
type configReport struct {
	File    string   `json:"file"`
	Profile string   `json:"profile"`
	Opened  []string `json:"opened"` // guards that an explicit setting opens (AM-82)
	Unknown []string `json:"unknown_environment,omitempty"`
	Missing []string `json:"missing_programs,omitempty"`
}

func (c *configCheckCmd) Run(a *app) error {
	cfg, err := a.checkedConfig()
	if err != nil {
		return err
	}
	file, _, err := a.configFile()
	if err != nil {
		return err
	}
	report := configReport{File: file, Profile: "local", Opened: cfg.opened(), Unknown: unknownEnv(a.environ), Missing: a.cannotRun(cfg)}
	if cfg.Public() {
		report.Profile = "public"
	}
	if c.JSON {
		report.Opened = slices.Concat([]string{}, report.Opened)
		return a.json(report)
	}
	a.print("ok: %s profile", report.Profile)
	for _, o := range report.Opened {
		a.print("guard opened: %s", o)
	}
	for _, name := range report.Unknown {
		a.note("%s sets nothing", name)
	}
	for _, m := range report.Missing {
		a.note("%s", clean(m))
	}
	return nil
}
