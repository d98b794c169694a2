// Command agentmesh is an AgentMesh directory and a signed-messaging node in one binary, and the tools around
// them.
//
// `agentmesh serve` is the process that runs; nearly every other command is a question to it, over the owner API
// on a Unix socket in the data directory. Where no serve runs, the same handlers run inside the command on the
// locked database, so a command behaves the same either way.
//
// This package is the only place that reads flags, environment and configuration, that handles signals and that
// exits. What an agent, a directory, a message is, it leaves to the packages below; here they are made and
// connected by cmd/internal/daemon. One command per file.
package main

import (
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
	_ "time/tzdata" // a static binary may run where no zones are installed

	"github.com/alecthomas/kong"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
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

	Init   initCmd   `cmd:"" group:"run" help:"Make a new agent: keys, card, database."`
	Serve  serveCmd  `cmd:"" group:"run" help:"Run directory and node; makes an agent on its first run."`
	Page   pageCmd   `cmd:"" group:"run" help:"Open the owner's page in a browser: prints its address with a code to sign in."`
	Audit  auditCmd  `cmd:"" group:"run" help:"Who was let in, refused and approved, by which rule, by whom."`
	Status statusCmd `cmd:"" group:"run" help:"Say how the node is doing."`
	Doctor doctorCmd `cmd:"" group:"run" help:"Examine the node from inside and outside, and say what to do."`
	Pause  pauseCmd  `cmd:"" group:"run" help:"Take no messages until resume."`
	Resume resumeCmd `cmd:"" group:"run" help:"Take messages again."`
	Demo   demoCmd   `cmd:"" group:"run" help:"Play the scheduling flow with three processes on this machine."`

	Discover      discoverCmd      `cmd:"" group:"mesh" help:"Find agents in the node's directories."`
	Card          cardCmd          `cmd:"" group:"mesh" help:"The agent's own card, and those of others."`
	Register      registerCmd      `cmd:"" group:"mesh" help:"Register or renew the card in the node's directories now."`
	Withdraw      withdrawCmd      `cmd:"" group:"mesh" help:"Take the card out of the node's directories."`
	Send          sendCmd          `cmd:"" group:"mesh" help:"Send a message."`
	Reply         replyCmd         `cmd:"" group:"mesh" help:"Answer in a conversation."`
	Inbox         inboxCmd         `cmd:"" group:"mesh" help:"What came in."`
	Approvals     approvalsCmd     `cmd:"" group:"mesh" help:"What waits for your decision."`
	Conversations conversationsCmd `cmd:"" group:"mesh" help:"Conversations and their transcripts."`
	Peers         peersCmd         `cmd:"" group:"mesh" help:"What you decided about other agents."`

	Calendar calendarCmd `cmd:"" group:"mesh" help:"Your free times, and events that were agreed."`

	Links      linksCmd      `cmd:"" group:"mesh" help:"Connections to other networks."`
	Mess       messCmd       `cmd:"" group:"mesh" help:"Ask for something in the physical world, and do what others ask for."`
	Mew        mewCmd        `cmd:"" group:"mesh" help:"MEW spaces: those that are served here, and those that the node takes part in."`
	AgentRelay agentRelayCmd `cmd:"" name:"agentrelay" group:"mesh" help:"AgentRelay: the relay that is hosted here, and the relays that the node is linked to."`

	Moltspeak moltspeakCmd `cmd:"" group:"mesh" help:"MoltSpeak agents: query, delegate, call tools, consents."`

	Keys    keysCmd      `cmd:"" group:"data" help:"Signing and encryption keys."`
	Mirrors directoryCmd `cmd:"" name:"directory" group:"run" help:"Mirror another directory."`
	Cards   cardsCmd     `cmd:"" group:"data" help:"The operator's hand on the directory: list, remove, ban, import, export."`
	Token   tokenCmd     `cmd:"" group:"data" help:"Invite codes of the directory."`
	Config  configCmd    `cmd:"" group:"data" help:"The configuration."`
	Check   checkCmd     `cmd:"" group:"data" help:"Read the whole data directory and say what is wrong with it."`
	Compact compactCmd   `cmd:"" group:"data" help:"Give the database's free space back to the disk, while nothing serves."`
	Backup  backupCmd    `cmd:"" group:"data" help:"Write one archive of the whole data directory, also while serving."`
	Restore restoreCmd   `cmd:"" group:"data" help:"Unpack an archive into a new data directory."`

	Skill      skillCmd      `cmd:"" group:"data" help:"The skill for OpenClaw agents."`
	Verify     verifyCmd     `cmd:"" group:"data" help:"Check an exported conversation or audit log, offline."`
	Message    messageCmd    `cmd:"" group:"debug" help:"Look into messages of any implementation."`
	Version    versionCmd    `cmd:"" group:"debug" help:"Print version and build."`
	Completion completionCmd `cmd:"" group:"debug" help:"Print a completion script: source <(agentmesh completion bash)."`
	Man        manCmd        `cmd:"" group:"debug" help:"Print the manual, or write all its pages."`
	Complete   completeCmd   `cmd:"" hidden:"" help:"What may come next on the command line."`
	DemoHook   demoHookCmd   `cmd:"" hidden:"" help:"The agent behind Sarah's node in the demo."`
}

// Globals are the flags that every command has.
type Globals struct {
	Data string   `placeholder:"DIR" env:"AGENTMESH_DATA" help:"Data directory (default: agentmesh in the user's configuration directory)."`
	File string   `name:"config" placeholder:"FILE" env:"AGENTMESH_CONFIG" help:"Configuration file (default: agentmesh.yaml in the data directory, where it exists)."`
	Set  []string `placeholder:"KEY=VALUE" sep:"none" help:"Set any key of the configuration; may be repeated."`

	Listen    *string  `placeholder:"HOST:PORT" help:"Same as --set listen=…"`
	PublicURL *string  `name:"public-url" placeholder:"URL" help:"Same as --set public_url=…"`
	TLS       *string  `name:"tls" placeholder:"NAME" help:"Be https://NAME: get a certificate from Let's Encrypt, whose terms you accept by it, and listen on 443 and 80."`
	TLSCert   *string  `name:"tls-cert" placeholder:"FILE" help:"Same as --set tls.cert_file=…"`
	TLSKey    *string  `name:"tls-key" placeholder:"FILE" help:"Same as --set tls.key_file=…"`
	Name      *string  `placeholder:"TEXT" help:"Same as --set name=…"`
	Directory []string `placeholder:"URL" sep:"none" help:"Same as --set directories=…; may be repeated."`
	ViaRelay  *string  `name:"via-relay" placeholder:"URL" help:"Same as --set via_relay=…: be reached through a directory's mailbox relay."`
	Roles     *string  `placeholder:"ROLES" help:"Same as --set roles=…"`
}

// app is what a command runs in.
type app struct {
	terminal.UI
	globals  Globals
	environ  []string
	quietest slog.Level // log lines below it are left out: commands that answer a question say little
}

// helpFor is the command that says how what was typed is meant.
func helpFor(err error) string {
	var hint strings.Builder
	hint.WriteString("agentmesh")
	if wrong, ok := errors.AsType[*kong.ParseError](err); ok && wrong.Context != nil {
		for _, step := range wrong.Context.Path {
			if step.Command != nil {
				hint.WriteString(" " + step.Command.Name)
			}
		}
	}
	return hint.String() + " --help"
}

// stopped is how kong's wish to exit (--help) comes back out of the parser.
type stopped int

// run is the whole program but for the process around it.
func run(ctx context.Context, args []string, in io.Reader, out, errOut io.Writer) (code int) {
	var cli commands
	a := &app{UI: terminal.UI{In: in, Out: out, Err: errOut}, environ: os.Environ(), quietest: slog.LevelWarn}
	defer func() {
		if s, ok := recover().(stopped); ok {
			if code = int(s); len(args) == 0 {
				code = exit.Usage
			}
		}
	}()
	if len(args) == 0 { // who does not know what to type is told, though nothing was asked
		_, _ = newParser(&cli, errOut, errOut).Parse([]string{"--help"}) // ends in stopped
	}
	parser := newParser(&cli, out, errOut)
	parsed, err := parser.Parse(args)
	if err != nil {
		a.Note("%v", err)
		a.Hint(helpFor(err))
		return exit.Usage
	}
	a.globals = cli.Globals
	parsed.BindTo(ctx, (*context.Context)(nil))
	return a.report(parsed.Run(a))
}

func newParser(cli *commands, out, errOut io.Writer) *kong.Kong {
	return kong.Must(cli,
		kong.Name("agentmesh"),
		kong.Description("A directory and a signed-messaging node for AgentMesh 0.1.0-draft."),
		kong.Writers(out, errOut),
		kong.Exit(func(code int) { panic(stopped(code)) }),
		kong.ExplicitGroups([]kong.Group{
			{Key: "run", Title: "Run:"}, {Key: "mesh", Title: "Talk to other agents:"},
			{Key: "data", Title: "Look after the data:"}, {Key: "debug", Title: "Debug:"},
		}),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true}),
	)
}

// report prints an error, what to do about it on its last line, and returns the exit code.
func (a *app) report(err error) int {
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

// dataDir returns the data directory that the command works on.
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

// configFile returns the configuration file, and whether the user named it.
func (a *app) configFile() (string, bool, error) {
	if a.globals.File != "" {
		return a.globals.File, true, nil
	}
	dir, err := a.dataDir()
	return filepath.Join(dir, datadir.FileConfig), false, err
}

// source says where the configuration of this command comes from.
func (a *app) source() (config.Source, error) {
	file, required, err := a.configFile()
	if err != nil {
		return config.Source{}, err
	}
	settings, err := a.globals.settings()
	return config.Source{File: file, Required: required, Environ: a.environ, Settings: settings}, err
}

// logger returns the process's own log.
func (a *app) logger(c config.Log) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.Level)) // checked with the configuration
	opts := &slog.HandlerOptions{Level: max(level, a.quietest)}
	if c.Format == "json" || c.Format == "auto" && !terminal.IsTerminal(a.Err) {
		return slog.New(slog.NewJSONHandler(a.Err, opts))
	}
	return slog.New(slog.NewTextHandler(a.Err, opts))
}

// options returns what a process of this command works on.
func (a *app) options() (daemon.Options, error) {
	src, err := a.source()
	if err != nil {
		return daemon.Options{}, err
	}
	cfg, err := src.LoadChecked(daemon.LinkKinds())
	if err != nil {
		return daemon.Options{}, err
	}
	dir, err := a.dataDir()
	return daemon.Options{
		Config: cfg, Source: src, Dir: datadir.Dir(dir), Build: thisBuild(), Passphrase: a.passphrase, Note: a.Note, Logger: a.logger(cfg.Log),
	}, err
}
