// Package doctor examines a node from inside, and from outside as its peers and directories see it. It reports problems
// and what to do about them. It changes nothing. Start with [Examine].
package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
	"github.com/agentmesh/agentmesh/cmd/internal/engine"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

// The states of a finding. A finding with findingFail makes the exit code 1.
const (
	findingOK   = "ok"
	findingWarn = "warn"
	findingFail = "fail"
)

// finding is one line of the report.
type finding struct {
	State string `json:"state"`
	Check string `json:"check"`
	Text  string `json:"text"`
	Do    string `json:"do,omitempty"` // what the user can do about it
}

// Report is the result of an examination. OK means that no finding has the state fail.
type Report struct {
	OK       bool      `json:"ok"`
	Findings []finding `json:"findings"`
}

// Options names the data directory to examine and its configuration.
type Options struct {
	Dir         datadir.Dir
	Source      config.Source
	Directories []string // the directories that the user named; they replace the configured ones
	Version     string
	Passphrase  func() ([]byte, error)
}

// examination is the state of one examination.
type examination struct {
	opts      Options
	cfg       config.Config
	dir       datadir.Dir
	card      wire.Value    // the card as last published or, for an agent at a URL, as fetched; null without a card
	running   bool          // serve answers on the data directory
	elsewhere bool          // the user named a URL to examine, instead of a data directory
	status    *owner.Status // of the running serve process, or nil
	findings  []finding
	clocks    []string // servers whose clock was compared
}

func (d *examination) ok(check, format string, args ...any) {
	d.findings = append(d.findings, finding{findingOK, check, fmt.Sprintf(format, args...), ""})
}

func (d *examination) warn(check, do, format string, args ...any) {
	d.findings = append(d.findings, finding{findingWarn, check, fmt.Sprintf(format, args...), do})
}

func (d *examination) fail(check, do, format string, args ...any) {
	d.findings = append(d.findings, finding{findingFail, check, fmt.Sprintf(format, args...), do})
}

// Examine examines the agent of a data directory from inside and outside. If target is not empty, it examines the agent
// or directory at that URL instead, as directories and peers see it.
func Examine(ctx context.Context, o Options, target string) (Report, error) {
	d := &examination{opts: o, dir: o.Dir}
	if target != "" {
		if err := d.examineURL(ctx, target); err != nil {
			return Report{}, err
		}
	} else {
		if _, err := os.Stat(string(o.Dir)); err != nil {
			return Report{}, datadir.NoAgent(string(o.Dir))
		}
		d.examineDataDir(ctx)
	}
	report := Report{OK: true, Findings: d.findings}
	for _, f := range d.findings {
		report.OK = report.OK && f.State != findingFail
	}
	return report, nil
}

// examineDataDir examines the data directory and its agent from the inside out, because the first failure often causes
// the later ones.
func (d *examination) examineDataDir(ctx context.Context) {
	d.checkModes()
	configured := d.checkConfiguration()
	d.checkDisk()
	d.checkAgentDoor()
	d.checkServe(ctx, configured)
	if configured {
		d.checkHooks(ctx)
	}
	base, local, reachable := d.cfg.PublicURL, !d.cfg.Public(), true
	if d.status != nil { // serve may run with other flags than this command
		base, local = d.status.URL, d.status.Profile != "public"
		d.checkFlags(local)
	}
	switch {
	case configured && !local:
		reachable = d.checkPublicURL(ctx, base)
	case configured && d.cfg.Public(): // the running process does not use this URL yet
		d.checkPublicURL(ctx, d.cfg.PublicURL)
	}
	if d.status != nil && !local && reachable {
		d.checkClients(ctx, base)
	}
	if d.status != nil && slices.Contains(d.status.Roles, config.RoleDirectory) && reachable {
		d.checkOwnDirectory(ctx, base, local)
	}
	if d.status != nil && d.status.AgentID == "" || configured && !d.cfg.Has(config.RoleNode) {
		return // a directory without a node
	}
	d.checkKeys()
	if !configured || d.card.IsNull() {
		return
	}
	p := d.newPeer(local)
	defer p.Close()
	d.checkListings(ctx, p)
	// A local endpoint answers only while serve runs. A public one is not asked if peers cannot connect to its host.
	if local && d.running || !local && d.checkEndpointHost(ctx, base, reachable) {
		d.checkEndpoint(ctx, p)
	}
}

// checkPublicURL checks the name and the certificate of a public URL, and reports whether peers can connect to it.
func (d *examination) checkPublicURL(ctx context.Context, target string) bool {
	u, err := url.Parse(target)
	return err == nil && d.checkPublicName(ctx, u) && d.checkCertificate(ctx, u)
}

// checkOwnDirectory examines the directory of the process as "doctor URL" does from elsewhere.
func (d *examination) checkOwnDirectory(ctx context.Context, target string, local bool) {
	u, err := url.Parse(target)
	if err != nil {
		return
	}
	p := d.newPeer(local)
	defer p.Close()
	if !d.checkDirectory(ctx, p, u) {
		d.fail("directory", "does a proxy forward /v1 to the process?", "%s/v1/agents does not answer with a list", terminal.Clean(target))
	}
}

// checkEndpointHost checks the name and the certificate of the endpoint as a peer does. publicURL is the URL of the
// process, and reachable is the result of [examination.checkPublicURL] for it. An endpoint at the same host is not
// checked again.
func (d *examination) checkEndpointHost(ctx context.Context, publicURL string, reachable bool) bool {
	u, err := url.Parse(d.card.GetStr("endpoint"))
	if err != nil || u.Scheme != "https" {
		return true // checkEndpoint reports the problem
	}
	if public, err := url.Parse(publicURL); err == nil && public.Host == u.Host {
		return reachable
	}
	return d.checkPublicName(ctx, u) && d.checkCertificate(ctx, u)
}

// checkModes checks that only the owner may read the data directory and the secrets in it (AM-7).
func (d *examination) checkModes() {
	const check = "data directory"
	if runtime.GOOS == "windows" {
		d.ok(check, "%s; Windows access control lists are not checked", string(d.dir))
		return
	}
	info, err := os.Stat(string(d.dir))
	if err != nil {
		d.fail(check, "name another one with --data", "%v", err)
		return
	}
	var fixes []string
	if info.Mode().Perm()&0o077 != 0 {
		fixes = append(fixes, "chmod 700 "+string(d.dir))
	}
	for _, name := range []string{datadir.FileKey, datadir.FileAge, datadir.FileCredential, datadir.FileDatabase} {
		if info, err := os.Lstat(d.dir.Path(name)); err == nil && info.Mode().Perm()&0o077 != 0 {
			fixes = append(fixes, "chmod 600 "+d.dir.Path(name))
		}
	}
	if len(fixes) > 0 {
		d.fail(check, strings.Join(fixes, " && "), "other users may read files in %s", string(d.dir))
		return
	}
	d.ok(check, "%s, readable only by its owner", string(d.dir))
}

// lowDisk is the number of free bytes below which checkDisk warns.
const lowDisk = 1 << 30

func (d *examination) checkDisk() {
	const check = "disk"
	usesFile, advice := d.cfg.Store.Postgres == "", "make room"
	if usesFile {
		advice += ": below min_free_disk the process stores nothing"
	}
	free, err := d.dir.FreeBytes()
	text := fmt.Sprintf("%d MiB free", free>>20)
	switch {
	case err != nil:
		d.warn(check, "", "cannot find out the free space: %v", err)
	case usesFile && free < int64(d.cfg.MinFreeDisk):
		d.fail(check, advice, "%s", text)
	case free < lowDisk:
		d.warn(check, advice, "%s", text)
	default:
		d.ok(check, "%s", text)
	}
}

// checkConfiguration sets cfg and reports whether the configuration is valid. If it is not, cfg has the defaults.
func (d *examination) checkConfiguration() bool {
	const check = "configuration"
	cfg, err := d.opts.Source.LoadAndCheck(daemon.LinkKinds())
	if err != nil {
		d.fail(check, "agentmesh config check", "%v", err)
		d.cfg = config.Default()
		return false
	}
	d.cfg = cfg
	profile := "local profile: only this machine can reach the agent"
	switch {
	case cfg.Public():
		profile = "public profile"
	case cfg.ViaRelay != "":
		profile = "local profile: others reach the agent only through the mailbox relay"
	}
	for _, m := range d.opts.Source.MissingPrograms(cfg) {
		d.fail("hook", "install it, or change the hook in the configuration", "%s", m)
	}
	for _, guard := range cfg.OpenGuards() {
		d.warn(check, "close it unless you need it open: agentmesh config check", "guard opened: %s", guard)
	}
	d.ok(check, "%s", profile)
	return true
}

// checkFlags replaces the finding about the configuration with a warning if only a flag of serve makes others reach the
// process. Other commands do not know the flags of serve.
func (d *examination) checkFlags(local bool) {
	address := d.status.URL
	if local {
		address = d.status.Endpoint
	}
	if d.cfg.Public() || local && (d.cfg.ViaRelay != "" || !isMailbox(address)) {
		return
	}
	for i, f := range d.findings {
		if f.Check == "configuration" && f.State == findingOK {
			d.findings[i] = finding{findingWarn, f.Check, "local profile, but serve was started with flags that make it " + terminal.Clean(address),
				"write the flags into the configuration: other commands and the next start do not know them"}
		}
	}
}

func (d *examination) checkKeys() {
	const check = "keys and card"
	if !d.dir.HasAgent() {
		d.fail(check, "agentmesh init, or agentmesh serve", "there is no agent in %s", string(d.dir))
		return
	}
	card, err := d.dir.Card()
	if err != nil {
		d.fail(check, "restore it from a backup", "%v", err)
		return
	}
	d.card = card
	err = d.dir.CheckSecrets(func() ([]byte, error) {
		if _, ok := config.Lookup(d.opts.Source.Environ, config.EnvPassphrase); !ok {
			if _, ok := config.Lookup(d.opts.Source.Environ, config.EnvPassphraseFile); !ok {
				return nil, signing.ErrNoPassphrase // doctor does not prompt
			}
		}
		return d.opts.Passphrase()
	})
	f, _ := errors.AsType[*exit.Error](err)
	switch {
	case errors.Is(err, signing.ErrNoPassphrase):
		d.warn(check, "set "+config.EnvPassphraseFile+" to check it", "the signing key is encrypted")
	case err != nil && f != nil && f.Hint != "":
		d.fail(check, f.Hint, "%v", err)
	case err != nil:
		d.fail(check, "agentmesh check shows details; restore a backup into a new directory", "%v", err)
	default:
		d.ok(check, "%s", terminal.Clean(card.GetStr("agent_id")))
	}
}

// checkServe checks whether serve runs on the data directory and accepts writes. It sets running and status.
func (d *examination) checkServe(ctx context.Context, configured bool) {
	const check = "serve"
	o := daemon.Running(ctx, string(d.dir))
	if o == nil {
		if configured && d.cfg.Store.Postgres == "" && d.dir.HasLostDatabase() {
			d.fail("store", "restore a backup into a new directory, or let agentmesh serve start with an empty one", "%s: %v", datadir.FileDatabase, datadir.ErrNoDatabase)
		}
		d.warn(check, "agentmesh serve", "no agentmesh serve runs on this data directory, so nobody can reach it")
		return
	}
	defer o.Close()
	d.running = true
	if _, err := o.Call(ctx, "GET", "version", nil, nil); err != nil {
		d.fail(check, "look at its log, then start it again", "%v", err)
		return
	}
	d.checkOwnCertificate(ctx, o)
	s, err := daemon.Fetch(ctx, o, owner.ShowStatus.Call())
	if err != nil {
		advice := "look at its log, then start it again"
		if exit.Code(err) == exit.TryAgain {
			advice = "look at its log: the database may not answer"
		}
		d.fail(check, advice, "it runs, but cannot return its status: %v", err)
		return
	}
	d.status = &s
	d.reportStatus(s)
	for _, text := range o.LinkFaults(ctx) {
		d.warn("link", "agentmesh links list", "%s", terminal.Clean(text))
	}
}

func (d *examination) reportStatus(s owner.Status) {
	switch {
	case s.AgentID == "":
		d.ok("serve", "a directory without a node runs")
	case s.Paused:
		d.warn("serve", "agentmesh resume", "it runs but is paused: it asks senders to try again")
	default:
		d.ok("serve", "it runs and accepts messages")
	}
	if s.Store != "ok" {
		d.fail("store", "make room on the disk, or look at the log", "%s", terminal.Clean(s.Store))
	} else {
		d.ok("store", "accepts writes")
	}
	for _, text := range engine.Describe(s.Database) {
		d.ok("database", "%s", terminal.Clean(text))
	}
	d.reportHooks(s)
	if s.Approvals > 0 {
		d.warn("approvals", "agentmesh approvals", "%d wait for you", s.Approvals)
	}
}

// checkAgentDoor reports what the agent's door, the API for the owner's agent, protects against.
func (d *examination) checkAgentDoor() {
	const check = "agent's door"
	door := d.cfg.AgentDoor
	isOpen := door.Socket != "" || door.TokenFile != ""
	const sameUser = "agent and owner are the same user of this machine: the door guards against mistakes and against prompt injection " +
		"through tools, not against a hostile program, which can open the owner's socket"
	switch {
	case !isOpen && slices.ContainsFunc(d.cfg.Hooks, func(h config.Hook) bool { return h.OpenClaw != "" }):
		d.warn(check, "set agent_door.socket to a path outside the data directory", "OpenClaw has only the owner's socket, through which it can approve and change rules")
	case slices.ContainsFunc(append(d.cfg.Hooks, d.cfg.Guard.Hook()), func(h config.Hook) bool { return len(h.Exec) > 0 && h.User == "" }):
		d.warn(check, "run your hooks as another user, with hooks[].user", "%s", sameUser)
	case isOpen && door.Group == "":
		d.warn(check, "run the agent as another user, and set agent_door.group", "%s", sameUser)
	case isOpen:
		d.ok(check, "other users may read and send, and decide nothing")
	}
}
