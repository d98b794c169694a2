// Command agentmesh is an AgentMesh directory, a signed-messaging node, and the tools around them in one binary.
//
// `agentmesh serve` is the long-running process; comments call it serve. Nearly every other command calls it through
// the owner API, over a Unix socket in the data directory. If serve is not running, the command opens the database and
// runs the handlers itself.
//
// Only this package and the packages in cmd/internal read flags, AGENTMESH_* variables and configuration, and only this
// package handles signals and exits. cmd/internal/daemon makes and connects the services, which other packages
// implement. Each command has its own file.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	_ "time/tzdata" // a static binary may run on a machine without time zone files

	"github.com/alecthomas/kong"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/database"
	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
	"github.com/agentmesh/agentmesh/cmd/internal/engine"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/manual"
	"github.com/agentmesh/agentmesh/cmd/internal/quickstart"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// commands is the grammar of the command line.
type commands struct {
	Globals

	Quickstart quickstart.Command `cmd:"" group:"run" help:"Set up a directory or an agent, and print what is left to do."`

	Init   initCmd   `cmd:"" group:"run" help:"Make a new agent: keys, card, database."`
	Serve  serveCmd  `cmd:"" group:"run" help:"Run directory and node. The first run makes an agent."`
	Page   pageCmd   `cmd:"" group:"run" help:"Print the address of the owner's page, with a code to sign in."`
	Audit  auditCmd  `cmd:"" group:"run" help:"Print the log of decisions: what was admitted, refused or approved, by whom, under which rule."`
	Status statusCmd `cmd:"" group:"run" help:"Show the state of the node."`
	Doctor doctorCmd `cmd:"" group:"run" help:"Examine the node from inside and outside, and recommend fixes."`
	Pause  pauseCmd  `cmd:"" group:"run" help:"Refuse messages until agentmesh resume."`
	Resume resumeCmd `cmd:"" group:"run" help:"Accept messages again after pause."`
	Demo   demoCmd   `cmd:"" group:"run" help:"Run an example on this machine: two agents agree on a time, with three processes."`

	Discover      discoverCmd         `cmd:"" group:"mesh" help:"Find agents in the node's directories."`
	Card          cardCmd             `cmd:"" group:"mesh" help:"Show and check cards, your own and those of others."`
	Register      registerCmd         `cmd:"" group:"mesh" help:"Register or renew the card in the node's directories now."`
	Withdraw      withdrawCmd         `cmd:"" group:"mesh" help:"Withdraw the card from the node's directories."`
	Send          sendCmd             `cmd:"" group:"mesh" help:"Send a message."`
	Reply         replyCmd            `cmd:"" group:"mesh" help:"Reply in a conversation."`
	Inbox         inboxCmd            `cmd:"" group:"mesh" help:"List, follow and acknowledge incoming messages."`
	Approve       approvalsApproveCmd `cmd:"" group:"mesh" help:"Approve a message or a request that waits for you."`
	Reject        approvalsRejectCmd  `cmd:"" group:"mesh" help:"Reject a message or a request that waits for you."`
	Approvals     approvalsCmd        `cmd:"" group:"mesh" help:"List and decide the messages and requests that wait for you."`
	Conversations conversationsCmd    `cmd:"" group:"mesh" help:"List, show, export and close conversations."`
	Peers         peersCmd            `cmd:"" group:"mesh" help:"Manage your rules, aliases and keys for other agents."`

	MCP mcpCmd `cmd:"" name:"mcp" group:"mesh" help:"Serve the mesh to your agent as tools (Model Context Protocol) over standard input and output."`

	Calendar calendarCmd `cmd:"" group:"mesh" help:"Show free times and agreed events, and propose or cancel events."`

	Bridge     bridgeCmd     `cmd:"" group:"nets" help:"List the protocols that this process serves to other networks, and turn them on or off."`
	Links      linksCmd      `cmd:"" group:"nets" help:"Show, test, add and remove links to other networks."`
	Mess       messCmd       `cmd:"" group:"nets" help:"Request work in the physical world, and carry out requests of others (MESS)."`
	Mew        mewCmd        `cmd:"" group:"nets" help:"Use MEW spaces that run here, and spaces behind links."`
	AgentRelay agentRelayCmd `cmd:"" name:"agentrelay" group:"nets" help:"Manage the AgentRelay relay that runs here, and use relays behind links."`

	A2A       a2aCmd       `cmd:"" name:"a2a" group:"nets" help:"Manage the tokens of callers over A2A."`
	Moltspeak moltspeakCmd `cmd:"" group:"nets" help:"Query MoltSpeak agents, delegate tasks, call tools, and manage consents."`

	Keys    keysCmd          `cmd:"" group:"data" help:"Show, make and rotate keys."`
	Mirrors directoryCmd     `cmd:"" name:"directory" group:"run" help:"Mirror another directory."`
	Cards   cardsCmd         `cmd:"" group:"data" help:"Manage the cards of the directory that runs here: list, remove, ban, import, export."`
	Token   tokenCmd         `cmd:"" group:"data" help:"Manage invite codes of the directory that runs here."`
	Config  configCmd        `cmd:"" group:"data" help:"Check the configuration."`
	Check   checkCmd         `cmd:"" group:"data" help:"Check the whole data directory, while agentmesh serve is not running."`
	Compact database.Compact `cmd:"" group:"data" help:"Return the database's free space to the disk, while agentmesh serve is not running."`
	DB      database.Command `cmd:"" name:"db" group:"data" help:"Make the tables in PostgreSQL, and move data between a database file and PostgreSQL."`
	Backup  backupCmd        `cmd:"" group:"data" help:"Write the whole data directory to one archive, even while agentmesh serve is running."`
	Restore restoreCmd       `cmd:"" group:"data" help:"Unpack an archive into a new data directory."`

	Hooks      hooksCmd      `cmd:"" group:"data" help:"Test a hook, the program or URL behind the node that answers messages."`
	Guard      guardCmd      `cmd:"" group:"data" help:"Test the guard, the hook that judges texts."`
	Skill      skillCmd      `cmd:"" group:"data" help:"Install or print the skill for OpenClaw agents."`
	Verify     verifyCmd     `cmd:"" group:"data" help:"Check an exported conversation or audit log offline."`
	Message    messageCmd    `cmd:"" group:"debug" help:"Sign and verify messages of any implementation."`
	Version    versionCmd    `cmd:"" group:"debug" help:"Print version and build."`
	Completion completionCmd `cmd:"" group:"debug" help:"Print a completion script, for example: source <(agentmesh completion bash)."`
	Complete   completeCmd   `cmd:"" hidden:"" help:"Print the candidates for the last word of a command line."`
	DemoHook   demoHookCmd   `cmd:"" hidden:"" help:"Answer messages as an agent of the demo."`
	Start      startCmd      `cmd:"" hidden:"" help:"Show the state in five lines, or offer to start an agent."`
}

// Globals are the flags that every command has.
type Globals struct {
	Data        string   `placeholder:"DIR" env:"AGENTMESH_DATA" help:"Data directory (default: agentmesh in the user's configuration directory)."`
	File        string   `name:"config" placeholder:"FILE" env:"AGENTMESH_CONFIG" help:"Configuration file (default: agentmesh.yaml in the data directory, if it exists)."`
	AgentSocket string   `name:"agent-socket" placeholder:"PATH" env:"AGENTMESH_AGENT_SOCKET" help:"Connect to the agent's door at this socket instead of using the data directory. Through the door, a command can read and send, but not decide."`
	Set         []string `placeholder:"KEY=VALUE" sep:"none" help:"Set a configuration key, for example --set access.mode=open. Repeat for more keys."`
	JSON        bool     `help:"Print the result as JSON."`
	Color       string   `default:"auto" enum:"auto,always,never" placeholder:"WHEN" help:"Color the output: ${enum}. With auto, a terminal gets colors unless NO_COLOR is set."`
}

// serverFlags are the flags of commands that configure a server.
type serverFlags struct {
	Listen  *string `placeholder:"HOST:PORT" help:"Same as --set listen=…"`
	TLS     *string `name:"tls" placeholder:"NAME" help:"Serve https://NAME on ports 443 and 80, with a certificate from Let's Encrypt. With this flag you accept the terms of Let's Encrypt."`
	TLSCert *string `name:"tls-cert" placeholder:"FILE" help:"Same as --set tls.cert_file=…"`
	TLSKey  *string `name:"tls-key" placeholder:"FILE" help:"Same as --set tls.key_file=…"`
	Roles   *string `placeholder:"ROLES" help:"Same as --set roles=…"`
	cardFlags
}

// cardFlags are the flags for the content of an agent's card, and for the directories that list the card.
type cardFlags struct {
	Name      *string  `placeholder:"TEXT" help:"Same as --set name=…"`
	PublicURL *string  `name:"public-url" placeholder:"URL" help:"Same as --set public_url=…"`
	Directory []string `placeholder:"URL" sep:"none" help:"Same as --set directories=… Repeat for more directories."`
	ViaRelay  *string  `name:"via-relay" placeholder:"URL" help:"Same as --set via_relay=…: receive messages through the mailbox of a directory."`
}

// app holds what every command needs.
type app struct {
	terminal.UI
	globals     Globals
	command     string      // the name of the command that runs
	yaml        bool        // mess commands print YAML
	server      serverFlags // the command sets its flags here before it reads the configuration
	environ     []string
	logs        *terminal.Held // if not nil, gets the log instead of Err
	minLogLevel slog.Level     // lower log levels are dropped; serve and mirror set it to debug, other commands keep warn
}

// run runs the program with the given arguments and files, and returns its exit code.
func run(ctx context.Context, args []string, in io.Reader, out, errOut io.Writer) int {
	var cli commands
	a := &app{UI: terminal.UI{In: in, Out: out, Err: errOut, Interrupted: ctx.Done()}, environ: os.Environ(), minLogLevel: slog.LevelWarn}
	afterHelp := exit.OK
	switch {
	case len(args) == 0 && terminal.IsTerminal(in) && terminal.IsTerminal(out):
		args = []string{"start"}
	case len(args) == 0:
		args, out, afterHelp = []string{"--help"}, errOut, exit.Usage
	}
	args = manual.ExpandArgs(args)
	// building only the commands that args name saves time
	parsed, err := manual.Parse(newParser(&cli, out, errOut, manual.OmitUnnamed(&cli, args)), args)
	if err != nil { // parse again with all commands, because the error may suggest another one
		cli = commands{}
		parsed, err = manual.Parse(newParser(&cli, out, errOut), args)
	}
	switch {
	case err != nil:
		a.Note("%s", manual.ExplainMissing(parsed, err))
		a.Hint("%s", manual.HelpCommand(parsed))
		return exit.Usage
	case manual.AsksForHelp(parsed):
		return cmp.Or(a.reportError(parsed.PrintUsage(false)), afterHelp)
	}
	a.globals, a.yaml, a.DataFlag = cli.Globals, cli.Mess.YAML, terminal.DataFlag(cli.Data)
	a.Color = cli.Color
	return a.reportError(cmp.Or(dispatch(ctx, a, parsed.Selected()), a.WriteError()))
}

// dispatch runs a command of the grammar. Its method is not looked up by name, as kong would do: the linker keeps every
// exported method of a program that looks up methods by names, which made this one an eighth larger.
func dispatch(ctx context.Context, a *app, command *kong.Node) error {
	a.command = command.Name
	switch c := command.Target.Addr().Interface().(type) {
	case interface {
		Run(ctx context.Context, a *app) error
	}:
		return c.Run(ctx, a)
	case interface {
		Run(ctx context.Context, e quickstart.Env) error
	}:
		src, dir, err := a.sourceAndDir()
		if err != nil {
			return err
		}
		return c.Run(ctx, quickstart.Env{UI: &a.UI, JSON: a.globals.JSON, Dir: dir, File: src.File, Options: a.options})
	case interface {
		Run(ctx context.Context, e database.Env) error
	}:
		src, dir, err := a.sourceAndDir()
		if err != nil {
			return err
		}
		return c.Run(ctx, database.Env{UI: &a.UI, JSON: a.globals.JSON, Dir: dir, Source: src, Options: a.options})
	}
	return fmt.Errorf("agentmesh %s does nothing", command.FullPath())
}

// newParser returns a parser for command lines. Help goes to out.
func newParser(cli *commands, out, errOut io.Writer, options ...kong.Option) *kong.Kong {
	parser := kong.Must(cli, append(options,
		kong.Name("agentmesh"),
		kong.Description("A directory and a signed-messaging node for AgentMesh 0.1.0-draft."),
		kong.Writers(out, errOut),
		kong.ExplicitGroups([]kong.Group{
			{Key: "run", Title: "Run:"}, {Key: "mesh", Title: "Talk to other agents:"}, {Key: "nets", Title: "Other networks:"},
			{Key: "data", Title: "Manage the data:"}, {Key: "debug", Title: "Debug:"},
		}),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true}),
		kong.Help(manual.PrintHelp),
	)...)
	manual.Arrange(parser.Model)
	return parser
}

// reportError prints an error, with its hint at the end of the last line, and returns the exit code.
func (a *app) reportError(err error) int {
	if err == nil {
		return exit.OK
	}
	f, ok := errors.AsType[*exit.Error](err)
	if ok && f.Err == nil {
		return f.Code
	}
	text := err.Error()
	if ok && f.Hint != "" {
		text += "; " + f.Hint
	}
	for line := range strings.Lines(text) {
		a.Note("%s", terminal.Clean(strings.TrimRight(line, "\n")))
	}
	return exit.Code(err)
}

func (a *app) dataDir() (string, error) {
	if a.globals.Data != "" {
		return filepath.Abs(a.globals.Data)
	}
	base, err := os.UserConfigDir()
	if err != nil {
		return "", exit.FailHint(exit.Config, fmt.Errorf("find the data directory: %w", err), "name one with --data")
	}
	return filepath.Join(base, "agentmesh"), nil
}

// fileDir returns the data directory for a command that works on a database file, or an error if the configuration
// names a PostgreSQL database.
func (a *app) fileDir(command string) (string, error) {
	src, dir, err := a.sourceAndDir()
	return string(dir), cmp.Or(err, engine.RequireFile(src, command))
}

// configFile returns the name of the configuration file, and whether the user gave this name.
func (a *app) configFile() (string, bool, error) {
	if a.globals.File != "" {
		return a.globals.File, true, nil
	}
	dir, err := a.dataDir()
	return filepath.Join(dir, datadir.FileConfig), false, err
}

func (a *app) source() (config.Source, error) {
	file, required, err := a.configFile()
	if err != nil {
		return config.Source{}, err
	}
	settings, err := a.settings()
	return config.Source{File: file, Required: required, Environ: a.environ, Settings: settings}, err
}

// sourceAndDir returns the sources of the command's configuration, and the data directory.
func (a *app) sourceAndDir() (config.Source, datadir.Dir, error) {
	src, err := a.source()
	if err != nil {
		return src, "", err
	}
	dir, err := a.dataDir()
	return src, datadir.Dir(dir), err
}

func (a *app) newLogger(c config.Log) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.Level)) // config.Check has validated the level
	opts := &slog.HandlerOptions{Level: max(level, a.minLogLevel)}
	out := a.Err
	if a.logs != nil {
		out = a.logs
	}
	if c.Format == "json" || c.Format == "auto" && !terminal.IsTerminal(a.Err) {
		return slog.New(slog.NewJSONHandler(out, opts))
	}
	return slog.New(slog.NewTextHandler(out, opts))
}

func (a *app) options() (daemon.Options, error) {
	src, dir, err := a.sourceAndDir()
	if err != nil {
		return daemon.Options{}, err
	}
	cfg, err := src.LoadAndCheck(daemon.LinkKinds())
	return daemon.Options{
		Config: cfg, Source: src, Dir: dir, Build: thisBuild(), Passphrase: a.readKeyPassphrase, Note: a.Note, Logger: a.newLogger(cfg.Log),
	}, err
}
