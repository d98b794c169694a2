package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/docs/openclaw"
	"github.com/agentmesh/agentmesh/node/atomicfile"
)

// skillCmd has the commands that make AgentMesh a skill of an OpenClaw agent.
type skillCmd struct {
	Install skillInstallCmd `cmd:"" help:"Install the skill, make an agent, configure its hook to the OpenClaw gateway, and serve."`
	Show    skillShowCmd    `cmd:"" help:"Print SKILL.md."`
}

type skillShowCmd struct{}

func (c *skillShowCmd) Run(a *app) error {
	a.Print("%s", strings.TrimRight(string(openclaw.Skill), "\n"))
	return nil
}

type skillInstallCmd struct {
	To        string `placeholder:"DIR" help:"Folder of skills (default: .openclaw/skills in your home directory)."`
	Gateway   string `default:"http://127.0.0.1:18789/hooks/agent" help:"URL of the gateway's hook that wakes the agent."`
	TokenFile string `placeholder:"FILE" help:"File with the gateway's hooks.token. Without it, messages stay in the inbox."`
	Agent     string `placeholder:"ID" help:"Id of the gateway's agent that gets the messages."`
	NoServe   bool   `help:"Do not start agentmesh serve."`
	Force     bool   `help:"Replace an existing skill or configuration file that differs."`
}

func (c *skillInstallCmd) Run(ctx context.Context, a *app) error {
	folder, err := c.skillFolder()
	if err != nil {
		return err
	}
	if err := c.writeFile(a, filepath.Join(folder, "agentmesh", "SKILL.md"), openclaw.Skill); err != nil {
		return err
	}
	dir, err := a.dataDir()
	if err != nil {
		return err
	}
	if c.TokenFile == "" {
		a.Note("no --token-file: messages stay in the inbox until hooks are configured")
	}
	if err := c.configure(a); err != nil {
		return err
	}
	if !datadir.Dir(dir).HasAgent() {
		if err := (&initCmd{}).Run(ctx, a); err != nil {
			return err
		}
	}
	if c.NoServe {
		a.Hint("agentmesh serve registers the node and accepts messages")
		return nil
	}
	return (&serveCmd{}).Run(ctx, a)
}

func (c *skillInstallCmd) skillFolder() (string, error) {
	if c.To != "" {
		return filepath.Abs(c.To)
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", exit.FailHint(exit.Config, fmt.Errorf("find the folder of skills: %w", err), "name one with --to")
	}
	return filepath.Join(home, ".openclaw", "skills"), nil
}

// skillConfig is the configuration that skill install writes, so that a later agentmesh serve uses the same settings.
type skillConfig struct {
	Name        string      `yaml:"name,omitempty"`
	PublicURL   string      `yaml:"public_url,omitempty"`
	Directories []string    `yaml:"directories,omitempty"`
	ViaRelay    string      `yaml:"via_relay,omitempty"`
	Hooks       []skillHook `yaml:"hooks,omitempty"`
}

type skillHook struct {
	Intent     string `yaml:"intent"`
	OpenClaw   string `yaml:"openclaw"`
	Agent      string `yaml:"openclaw_agent,omitempty"`
	SecretFile string `yaml:"secret_file"`
}

// configure writes the configuration file with the name and the addresses that the flags set. If --token-file is given,
// the file also has a hook that hands every message to the gateway. Without any of these flags it writes nothing.
func (c *skillInstallCmd) configure(a *app) error {
	orEmpty := func(flag *string) string {
		if flag == nil {
			return ""
		}
		return *flag
	}
	g := a.globals
	config := skillConfig{Name: orEmpty(g.Name), PublicURL: orEmpty(g.PublicURL), Directories: g.Directory, ViaRelay: orEmpty(g.ViaRelay)}
	if c.TokenFile != "" {
		token, err := c.tokenPath()
		if err != nil {
			return err
		}
		config.Hooks = []skillHook{{"*", c.Gateway, c.Agent, token}}
	}
	text, err := yaml.Marshal(config)
	if err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	if string(text) == "{}\n" {
		return nil
	}
	file, _, err := a.configFile()
	if err != nil {
		return err
	}
	return c.writeFile(a, file, text)
}

// tokenPath returns the absolute path of the file with the gateway's token. An empty file is an error.
func (c *skillInstallCmd) tokenPath() (string, error) {
	token, err := filepath.Abs(c.TokenFile)
	if err != nil {
		return "", exit.Fail(exit.Input, err)
	}
	if data, err := os.ReadFile(token); err != nil {
		return "", exit.FailHint(exit.Input, err, "the file must contain the hooks.token of the gateway")
	} else if len(bytes.TrimSpace(data)) == 0 {
		return "", exit.FailHint(exit.Input, fmt.Errorf("%s is empty", token), "the file must contain the hooks.token of the gateway")
	}
	return token, nil
}

// writeFile writes text to a file. If the file exists and differs, it is replaced only if --force is given.
func (c *skillInstallCmd) writeFile(a *app, name string, text []byte) error {
	existing, err := os.ReadFile(name)
	switch {
	case err == nil && bytes.Equal(existing, text):
		return nil
	case err == nil && !c.Force:
		return exit.FailHint(exit.Config, fmt.Errorf("%s exists and differs", name), "look at the file, and add --force to replace it")
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return exit.Fail(exit.Config, err)
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return exit.Fail(exit.Config, err)
	}
	if err := atomicfile.Write(name, text); err != nil {
		return exit.Fail(exit.Config, err)
	}
	a.Note("wrote %s", terminal.Clean(name))
	return nil
}
