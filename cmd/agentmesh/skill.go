package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/docs/openclaw"
	"github.com/agentmesh/agentmesh/node/atomicfile"
	"github.com/agentmesh/agentmesh/node/wire"
)

type skillCmd struct {
	Install skillInstallCmd `cmd:"" help:"Install the skill, make an agent, connect its hook to the OpenClaw gateway, and serve."`
	Show    skillShowCmd    `cmd:"" default:"withargs" help:"Print SKILL.md."`
}

type skillShowCmd struct{}

func (c *skillShowCmd) Run(_ context.Context, a *app) error {
	a.Print("%s", strings.TrimRight(string(openclaw.Skill), "\n"))
	return nil
}

type skillInstallCmd struct {
	cardFlags
	To          string `placeholder:"DIR" help:"Folder of skills (default: skills in OpenClaw's state directory)."`
	Profile     string `placeholder:"NAME" help:"Profile of OpenClaw, as in openclaw --profile."`
	Gateway     string `placeholder:"URL" help:"URL of the gateway that gets the messages: its A2A channel, or /hooks/agent (default: http://127.0.0.1:18789/a2a/v1)."`
	TokenFile   string `placeholder:"FILE" help:"File with the token of the A2A peer or hooks.token. Without it, messages stay in the inbox."`
	Agent       string `placeholder:"ID" help:"Id of the gateway's agent that gets the messages; only for /hooks/agent."`
	WriteConfig bool   `help:"Configure the gateway with the program openclaw: its A2A channel and the MCP server. Makes a token if none exists."`
	NoServe     bool   `help:"Do not start agentmesh serve."`
	Force       bool   `help:"Replace an existing skill or configuration file that differs."`
}

func (c *skillInstallCmd) Run(ctx context.Context, a *app) error {
	a.server.cardFlags = c.cardFlags
	if err := c.prepare(a); err != nil {
		return err
	}
	folder, err := c.skillFolder()
	if err != nil {
		return err
	}
	socket, err := agentSocket(a)
	if err != nil {
		return err
	}
	dir, err := a.dataDir()
	if err != nil {
		return err
	}
	if c.TokenFile == "" {
		a.Note("no --token-file: messages stay in the inbox until hooks are configured")
	}
	if err := c.writeFiles(a, filepath.Join(folder, "agentmesh", "SKILL.md"), socket); err != nil {
		return err
	}
	if err := c.configureGateway(ctx, a); err != nil {
		return err
	}
	if err := c.probe(ctx, a); err != nil {
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

// skillFolder returns the folder of skills, by default the one in OpenClaw's state directory.
func (c *skillInstallCmd) skillFolder() (string, error) {
	if c.To != "" {
		return filepath.Abs(c.To)
	}
	if state := os.Getenv("OPENCLAW_STATE_DIR"); state != "" && c.Profile == "" {
		return filepath.Abs(filepath.Join(state, "skills"))
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", exit.FailHint(exit.Config, fmt.Errorf("find the folder of skills: %w", err), "name one with --to")
	}
	state := ".openclaw"
	if c.Profile != "" {
		state += "-" + c.Profile
	}
	return filepath.Join(home, state, "skills"), nil
}

// prepare refuses flags that the configuration file cannot keep, because a later agentmesh serve would not use them. It
// also refuses flags that do not go together. It sets the defaults and, with --write-config, makes a missing token.
func (c *skillInstallCmd) prepare(a *app) error {
	refuse := func(flag, hint string) error {
		return exit.FailHint(exit.Usage, fmt.Errorf("skill install cannot use %s", flag), hint)
	}
	const edit = "write the setting into the configuration file"
	switch {
	case len(a.globals.Set) > 0:
		return refuse("--set", edit)
	case c.TokenFile == "" && !c.WriteConfig && c.Gateway+c.Agent != "":
		return refuse("--gateway or --agent without a token", "add --token-file")
	case c.Agent != "" && c.isA2A():
		return refuse("--agent for the A2A channel, which has one agent", "remove it, or name the gateway's /hooks/agent with --gateway")
	case c.WriteConfig && !c.isA2A():
		return refuse("--write-config for "+c.Gateway, "it configures the A2A channel only: remove --gateway or --write-config")
	}
	if c.Profile != "" && !filepath.IsLocal(c.Profile) {
		return exit.Fail(exit.Usage, errors.New("--profile must be a name, not a path"))
	}
	if c.Gateway == "" {
		c.Gateway = "http://127.0.0.1:18789/a2a/v1"
	}
	if !c.WriteConfig || c.TokenFile != "" {
		return nil
	}
	dir, err := a.dataDir()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return exit.Fail(exit.Config, err)
	}
	c.TokenFile = filepath.Join(dir, "openclaw.token")
	if _, err := os.Stat(c.TokenFile); errors.Is(err, fs.ErrNotExist) {
		return atomicfile.Write(c.TokenFile, []byte(rand.Text()+rand.Text()+"\n"))
	}
	return nil
}

// isA2A reports whether the URL of the gateway is that of its A2A channel. The other choice is /hooks/agent.
func (c *skillInstallCmd) isA2A() bool {
	return !strings.HasSuffix(strings.TrimRight(c.Gateway, "/"), "/agent")
}

// configureGateway turns the gateway's A2A channel on and adds the MCP server, or prints the commands that do so.
func (c *skillInstallCmd) configureGateway(ctx context.Context, a *app) error {
	if c.TokenFile == "" || !c.isA2A() {
		return nil
	}
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	if resolved, err := filepath.EvalSymlinks(program); err == nil { // the gateway compares real paths
		program = resolved
	}
	command := []string{"openclaw"}
	if c.Profile != "" {
		command = append(command, "--profile", c.Profile)
	}
	socket, err := agentSocket(a)
	if err != nil {
		return err
	}
	addMCP := append(slices.Clone(command), "mcp", "add", "agentmesh", "--command", program, "--arg", "mcp", "--env", "AGENTMESH_AGENT_SOCKET="+socket)
	if !c.WriteConfig {
		a.Hint("these commands let the gateway take messages and use the tools of agentmesh; --write-config runs them:")
		set := quoteCommand(command) + " config set channels.a2a."
		a.Hint("%senabled true", set)
		a.Hint("%speers.mesh.token \"$(cat %s)\"", set, quoteCommand([]string{c.TokenFile}))
		a.Hint("%s", quoteCommand(addMCP))
		return nil
	}
	token, err := (config.Source{}).Secret("--token-file", c.TokenFile)
	if err != nil {
		return exit.Fail(exit.Input, err)
	}
	batch := wire.MustMarshal([]gatewaySetting{
		{"channels.a2a.enabled", true}, {"channels.a2a.peers.mesh.token", token},
	})
	file := c.TokenFile + ".batch.json" // a file, because other users can read the arguments of a program
	if err := atomicfile.Write(file, batch); err != nil {
		return exit.Fail(exit.Config, err)
	}
	defer os.Remove(file)
	if err := runOpenClaw(ctx, append(slices.Clone(command), "config", "set", "--batch-file", file)); err != nil {
		return err
	}
	if err := runOpenClaw(ctx, append(addMCP, "--no-probe")); err != nil && !strings.Contains(err.Error(), "already exists") {
		return err
	}
	a.Note("configured the gateway: channels.a2a and the MCP server agentmesh")
	return nil
}

func quoteCommand(words []string) string {
	var quoted []string
	for _, w := range words {
		quoted = append(quoted, terminal.QuoteShell(w))
	}
	return terminal.Clean(strings.Join(quoted, " "))
}

// gatewaySetting is one entry of a file for openclaw config set --batch-file.
type gatewaySetting struct {
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// runOpenClaw runs the program openclaw with the user's environment. Its error contains the end of the output.
func runOpenClaw(ctx context.Context, command []string) error {
	out, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput()
	if err != nil {
		text := fmt.Sprintf("%s: %v: %s", strings.Join(command[:2], " "), err, terminal.Clean(strings.TrimSpace(string(out[max(0, len(out)-1000):]))))
		return exit.FailHint(exit.Unavailable, errors.New(strings.TrimSuffix(text, ": ")), "is openclaw installed and in PATH?")
	}
	return nil
}

// probe prints whether the gateway would accept a message. A gateway that does not run yet is not an error.
func (c *skillInstallCmd) probe(ctx context.Context, a *app) error {
	if c.TokenFile == "" {
		return nil
	}
	o, err := a.options()
	if err != nil {
		return err
	}
	daemon.ProbeHooks(ctx, o.Source, o.Config, func(name string, err error) {
		if err != nil {
			a.Note("%s does not accept messages yet: %s", terminal.Clean(name), terminal.Clean(err.Error()))
		} else {
			a.Note("%s accepts messages", terminal.Clean(name))
		}
	})
	return nil
}

// skillConfig is the configuration that skill install writes, so that a later agentmesh serve uses the same settings.
type skillConfig struct {
	Name        *string     `yaml:"name,omitempty"`
	PublicURL   *string     `yaml:"public_url,omitempty"`
	Directories []string    `yaml:"directories,omitempty"`
	ViaRelay    *string     `yaml:"via_relay,omitempty"`
	AgentDoor   skillDoor   `yaml:"agent_door,omitempty"`
	Hooks       []skillHook `yaml:"hooks,omitempty"`
}

type skillDoor struct {
	Socket string `yaml:"socket"`
}

type skillHook struct {
	Intent     string `yaml:"intent"`
	A2A        string `yaml:"a2a,omitempty"`
	OpenClaw   string `yaml:"openclaw,omitempty"`
	Agent      string `yaml:"openclaw_agent,omitempty"`
	SecretFile string `yaml:"secret_file"`
}

// agentSocket returns the path of the socket for the agent, beside the data directory.
func agentSocket(a *app) (string, error) {
	dir, err := a.dataDir()
	return dir + ".agent.sock", err
}

// writeFiles writes the skill and the configuration. If one of the files exists and differs, it writes neither, unless
// --force is given.
func (c *skillInstallCmd) writeFiles(a *app, skill, socket string) error {
	text, err := c.configText(socket)
	if err != nil {
		return err
	}
	configuration, _, err := a.configFile()
	if err != nil {
		return err
	}
	var differing []string
	texts := map[string][]byte{skill: openclaw.SkillFor(socket), configuration: text}
	for _, name := range []string{skill, configuration} {
		existing, err := os.ReadFile(name)
		switch {
		case err == nil && bytes.Equal(existing, texts[name]):
			continue
		case err == nil && !c.Force:
			return exit.FailHint(exit.Config, fmt.Errorf("%s exists and differs", name), "look at the file, and add --force to replace it")
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return exit.Fail(exit.Config, err)
		}
		differing = append(differing, name)
	}
	for _, name := range differing {
		err := os.MkdirAll(filepath.Dir(name), 0o700)
		if err == nil {
			err = atomicfile.Write(name, texts[name])
		}
		if err != nil {
			return exit.Fail(exit.Config, err)
		}
		a.Note("wrote %s", terminal.Clean(name))
	}
	return nil
}

// configText returns the configuration file with agent_door.socket, and with the name and the addresses that the flags
// set. If there is a token, the file also has a hook that hands every message to the gateway.
func (c *skillInstallCmd) configText(socket string) ([]byte, error) {
	config := skillConfig{Name: c.Name, PublicURL: c.PublicURL, Directories: c.Directory, ViaRelay: c.ViaRelay, AgentDoor: skillDoor{socket}}
	if c.TokenFile != "" {
		token, err := c.tokenPath()
		if err != nil {
			return nil, err
		}
		config.Hooks = []skillHook{{Intent: "*", OpenClaw: c.Gateway, Agent: c.Agent, SecretFile: token}}
		if c.isA2A() {
			config.Hooks[0].A2A, config.Hooks[0].OpenClaw = c.Gateway, ""
		}
	}
	text, err := yaml.Marshal(config)
	if err != nil {
		return nil, fmt.Errorf("write configuration: %w", err)
	}
	return text, nil
}

// tokenPath returns the absolute path of the file with the gateway's token. An empty file is an error.
func (c *skillInstallCmd) tokenPath() (string, error) {
	token, err := filepath.Abs(c.TokenFile)
	if err == nil {
		_, err = (config.Source{}).Secret("--token-file", token)
	}
	if err != nil {
		return "", exit.FailHint(exit.Input, err, "the file must contain the gateway's hooks.token, or the token of the A2A peer")
	}
	return token, nil
}
