// Package doctor examines a node from inside and from outside, as its peers and directories see it, and says what to do
// about what is wrong. It changes nothing.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

// The states of a finding. Only failed ones make the exit code 1.
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
	Do    string `json:"do,omitempty"`
}

type Report struct {
	OK       bool      `json:"ok"`
	Findings []finding `json:"findings"`
}

// Options says what is examined, and with which configuration.
type Options struct {
	Dir         datadir.Dir
	Source      config.Source
	Directories []string // that the user named, asked instead of those of the configuration
	Version     string
	Passphrase  func() ([]byte, error)
}

// examination is one examination.
type examination struct {
	opts    Options
	cfg     config.Config
	home    datadir.Dir
	card    wire.Value // as last published, null where there is none
	running bool
	status  *owner.Status // of the node that runs, nil where none does
	found   []finding
}

func (d *examination) ok(check, format string, args ...any) {
	d.found = append(d.found, finding{findingOK, check, fmt.Sprintf(format, args...), ""})
}

func (d *examination) warn(check, do, format string, args ...any) {
	d.found = append(d.found, finding{findingWarn, check, fmt.Sprintf(format, args...), do})
}

func (d *examination) fail(check, do, format string, args ...any) {
	d.found = append(d.found, finding{findingFail, check, fmt.Sprintf(format, args...), do})
}

// Examine looks at the agent of a data directory from inside and outside, or with target at the agent or directory at
// that URL as a directory and its peers see it.
func Examine(ctx context.Context, o Options, target string) (Report, error) {
	d := &examination{opts: o, home: o.Dir}
	if target != "" {
		if err := d.visit(ctx, target); err != nil {
			return Report{}, err
		}
	} else {
		if _, err := os.Stat(string(o.Dir)); err != nil {
			return Report{}, datadir.NoAgent(string(o.Dir))
		}
		d.examine(ctx)
	}
	report := Report{OK: true, Findings: d.found}
	for _, f := range d.found {
		report.OK = report.OK && f.State != findingFail
	}
	return report, nil
}

// examine goes from the inside out: what fails first is most often why the rest does.
func (d *examination) examine(ctx context.Context) {
	d.modes()
	d.disk()
	configured := d.configuration()
	d.socket(ctx)
	base, local, named := d.cfg.PublicURL, !d.cfg.Public(), true
	if d.status != nil { // it may run with other flags than this command has
		base, local = d.status.URL, d.status.Profile != "public"
		d.flagged(local)
	}
	switch {
	case configured && !local:
		named = d.publicURL(ctx, base)
	case configured && d.cfg.Public(): // the process that runs does not use it yet
		d.publicURL(ctx, d.cfg.PublicURL)
	}
	if d.status != nil && !local && named {
		d.clients(ctx, base)
	}
	if d.status != nil && slices.Contains(d.status.Roles, config.RoleDirectory) && named {
		d.ownDirectory(ctx, base, local)
	}
	if d.status != nil && d.status.AgentID == "" || configured && !d.cfg.Has(config.RoleNode) {
		return // a directory alone
	}
	d.keys()
	if !configured || d.card.IsNull() {
		return
	}
	http := client.NewHTTP(client.HTTPConfig{Local: local, AllowPrivate: d.cfg.Network.AllowPrivate, Version: d.opts.Version})
	defer http.Close()
	d.listings(ctx, http)
	if local || d.reachable(ctx, base, named) {
		d.endpoint(ctx, http, local)
	}
}

// publicURL looks at the name and the certificate of the URL under which others reach the process.
func (d *examination) publicURL(ctx context.Context, target string) bool {
	u, err := url.Parse(target)
	return err == nil && d.resolve(ctx, u, false) && d.certificate(ctx, u)
}

// ownDirectory examines the directory of the process as "doctor URL" does from elsewhere.
func (d *examination) ownDirectory(ctx context.Context, target string, local bool) {
	u, err := url.Parse(target)
	if err != nil {
		return
	}
	h, reach := d.outside(local)
	defer h.Close()
	if !d.directory(ctx, h, reach, u) {
		d.fail("directory", "does a proxy pass /v1 on to it?", "%s/v1/agents does not answer with a list", terminal.Clean(target))
	}
}

// reachable looks at name and certificate of the endpoint, as a peer meets them. named is what was found out about those
// of the process, which are the same if the endpoint is at its host.
func (d *examination) reachable(ctx context.Context, process string, named bool) bool {
	u, err := url.Parse(d.card.GetStr("endpoint"))
	if err != nil || u.Scheme != "https" {
		return true // the endpoint itself says more
	}
	if at, err := url.Parse(process); err == nil && at.Host == u.Host {
		return named
	}
	return d.resolve(ctx, u, false) && d.certificate(ctx, u)
}

// modes looks at who may read the data directory and the secrets in it (AM-7).
func (d *examination) modes() {
	const check = "data directory"
	if runtime.GOOS == "windows" {
		d.ok(check, "%s; access is governed by its lists, which are not looked at", string(d.home))
		return
	}
	info, err := os.Stat(string(d.home))
	if err != nil {
		d.fail(check, "name another one with --data", "%v", err)
		return
	}
	wide := []string{}
	if info.Mode().Perm()&0o077 != 0 {
		wide = append(wide, "chmod 700 "+string(d.home))
	}
	for _, name := range []string{datadir.FileKey, datadir.FileAge, datadir.FileCredential, datadir.FileDatabase} {
		if info, err := os.Lstat(d.home.Path(name)); err == nil && info.Mode().Perm()&0o077 != 0 {
			wide = append(wide, "chmod 600 "+d.home.Path(name))
		}
	}
	if len(wide) > 0 {
		d.fail(check, strings.Join(wide, " && "), "other users may look into %s", string(d.home))
		return
	}
	d.ok(check, "%s, for its owner only", string(d.home))
}

// roomy is the free space below which somebody should look, in bytes.
const roomy = 1 << 30

func (d *examination) disk() {
	const check = "disk"
	cfg, err := config.Load(d.opts.Source)
	if err != nil {
		cfg = config.Default()
	}
	free, err := d.home.Free()
	text := fmt.Sprintf("%d MiB free", free>>20)
	switch {
	case err != nil:
		d.warn(check, "", "free space is not known: %v", err)
	case free < int64(cfg.MinFreeDisk):
		d.fail(check, "make room: nothing is stored below min_free_disk", "%s", text)
	case free < roomy:
		d.warn(check, "make room before it is below min_free_disk, where nothing is stored any more", "%s", text)
	default:
		d.ok(check, "%s", text)
	}
}

func (d *examination) configuration() bool {
	const check = "configuration"
	cfg, err := d.opts.Source.LoadChecked(daemon.LinkKinds())
	if err != nil {
		d.fail(check, "agentmesh config check", "%v", err)
		return false
	}
	d.cfg = cfg
	profile := "local profile: nobody beyond this machine can reach it"
	switch {
	case cfg.Public():
		profile = "public profile"
	case cfg.ViaRelay != "":
		profile = "local profile: reached through the mailbox relay alone"
	}
	for _, m := range d.opts.Source.MissingPrograms(cfg) {
		d.fail("hook", "install it, or change the hook in the configuration", "%s", m)
	}
	for _, guard := range cfg.Opened() {
		d.warn(check, "close it unless you mean it: agentmesh config check", "guard opened: %s", guard)
	}
	d.ok(check, "%s", profile)
	return true
}

// flagged corrects what configuration found if a flag of serve made the process public: flags are not remembered.
func (d *examination) flagged(local bool) {
	if local || d.cfg.Public() {
		return
	}
	for i, f := range d.found {
		if f.Check == "configuration" && f.State == findingOK {
			d.found[i] = finding{findingWarn, f.Check, "local profile, but serve was started with flags that make it " + terminal.Clean(d.status.URL),
				"write them into the configuration: other commands and the next start do not know them"}
		}
	}
}

// keys checks the secrets and that the card is that of the key.
func (d *examination) keys() {
	const check = "keys and card"
	if !d.home.HasAgent() {
		d.fail(check, "agentmesh init, or agentmesh serve", "there is no agent in %s", string(d.home))
		return
	}
	card, err := d.home.Card()
	if err != nil {
		d.fail(check, "restore it from a backup", "%v", err)
		return
	}
	d.card = card
	err = d.home.CheckSecrets(func() ([]byte, error) {
		if _, ok := config.Lookup(d.opts.Source.Environ, config.EnvPassphrase); !ok {
			if _, ok := config.Lookup(d.opts.Source.Environ, config.EnvPassphraseFile); !ok {
				return nil, signing.ErrNoPassphrase // a doctor asks nothing
			}
		}
		return d.opts.Passphrase()
	})
	f, _ := errors.AsType[*exit.Error](err)
	switch {
	case errors.Is(err, signing.ErrNoPassphrase):
		d.warn(check, "set "+config.EnvPassphraseFile+" to have it checked", "the signing key is encrypted")
	case err != nil && f != nil && f.Hint != "":
		d.fail(check, f.Hint, "%v", err)
	case err != nil:
		d.fail(check, "agentmesh check says more; restore a backup into a new directory", "%v", err)
	default:
		d.ok(check, "%s", terminal.Clean(card.GetStr("agent_id")))
	}
}

// socket asks whether a serve runs and takes writes.
func (d *examination) socket(ctx context.Context) {
	const check = "serve"
	o := daemon.Running(ctx, string(d.home))
	if o == nil {
		if d.home.LostDatabase() {
			d.fail("store", "restore a backup into a new directory, or let agentmesh serve start with an empty one", "%s: %v", filepath.Base(d.home.Path(datadir.FileDatabase)), datadir.ErrNoDatabase)
		}
		d.warn(check, "agentmesh serve", "none runs on this data directory, so nobody can reach the agent")
		return
	}
	defer o.Close()
	d.running = true
	if _, err := o.Call(ctx, "GET", "version", nil, nil); err != nil {
		d.fail(check, "look at its log, then start it again", "%v", err)
		return
	}
	d.ownCertificate(ctx, o)
	raw, err := o.Call(ctx, "GET", "status", nil, nil)
	if err != nil {
		d.fail(check, "look at its log, then start it again", "it runs, and its status fails: %v", err)
		return
	}
	s, err := daemon.Decode[owner.Status](raw)
	if err != nil {
		d.fail(check, "is it another version of agentmesh?", "%v", err)
		return
	}
	d.status = &s
	d.serving(s)
}

func (d *examination) serving(s owner.Status) {
	switch {
	case s.AgentID == "":
		d.ok("serve", "a directory without a node runs")
	case s.Paused:
		d.warn("serve", "agentmesh resume", "it runs and is paused: senders are told to try again")
	default:
		d.ok("serve", "it runs and takes messages")
	}
	if s.Store != "ok" {
		d.fail("store", "make room on the disk, or look at the log", "%s", terminal.Clean(s.Store))
	} else {
		d.ok("store", "takes writes")
	}
	if s.Approvals > 0 {
		d.warn("approvals", "agentmesh approvals", "%d wait for you", s.Approvals)
	}
}
