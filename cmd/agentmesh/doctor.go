package main

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

	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store/bolt"
)

// doctorCmd looks at a node from inside and from outside and says what to do about what is wrong. It changes
// nothing, and it works whether a serve runs or not: what only a running one can show is a warning then.
type doctorCmd struct {
	URL  string `arg:"" optional:"" help:"Look at the agent at this URL instead, as a directory and its peers see it, or at the directory there."`
	JSON bool   `help:"Print the result as JSON."`
}

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

type doctorReport struct {
	OK       bool      `json:"ok"`
	Findings []finding `json:"findings"`
}

// doctor is one examination.
type doctor struct {
	app     *app
	cfg     Config
	home    home
	card    wire.Value // as last published, null where there is none
	running bool
	status  *owner.Status // of the node that runs, nil where none does
	found   []finding
}

func (d *doctor) ok(check, format string, args ...any) {
	d.found = append(d.found, finding{findingOK, check, fmt.Sprintf(format, args...), ""})
}

func (d *doctor) warn(check, do, format string, args ...any) {
	d.found = append(d.found, finding{findingWarn, check, fmt.Sprintf(format, args...), do})
}

func (d *doctor) fail(check, do, format string, args ...any) {
	d.found = append(d.found, finding{findingFail, check, fmt.Sprintf(format, args...), do})
}

func (c *doctorCmd) Run(ctx context.Context, a *app) error {
	dir, err := a.dataDir()
	if err != nil {
		return err
	}
	d := &doctor{app: a, home: home{dir}}
	if c.URL != "" {
		if err := d.visit(ctx, c.URL); err != nil {
			return err
		}
	} else {
		if _, err := os.Stat(dir); err != nil {
			return noAgent(dir)
		}
		d.examine(ctx)
	}
	report := doctorReport{OK: true, Findings: d.found}
	for _, f := range d.found {
		report.OK = report.OK && f.State != findingFail
	}
	if c.JSON {
		err = a.json(report)
	} else {
		a.showDoctor(report)
	}
	if err == nil && !report.OK {
		err = quietly(exitNo)
	}
	return err
}

func (a *app) showDoctor(r doctorReport) {
	var rows [][]string
	for _, f := range r.Findings {
		rows = append(rows, []string{f.State, f.Check, f.Text})
		if f.Do != "" {
			rows = append(rows, []string{"", "", "do: " + f.Do})
		}
	}
	a.table(rows)
}

// examine goes from the inside out: what fails first is most often why the rest does.
func (d *doctor) examine(ctx context.Context) {
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
	if d.status != nil && slices.Contains(d.status.Roles, roleDirectory) && named {
		d.ownDirectory(ctx, base, local)
	}
	if d.status != nil && d.status.AgentID == "" || configured && !d.cfg.has(roleNode) {
		return // a directory alone
	}
	d.keys()
	if !configured || d.card.IsNull() {
		return
	}
	http := client.NewHTTP(client.HTTPConfig{Local: local, AllowPrivate: d.cfg.Network.AllowPrivate, Version: thisBuild().Version})
	defer http.Close()
	d.listings(ctx, http)
	if local || d.reachable(ctx, base, named) {
		d.endpoint(ctx, http, local)
	}
}

// publicURL looks at the name and the certificate of the URL under which others reach the process.
func (d *doctor) publicURL(ctx context.Context, target string) bool {
	u, err := url.Parse(target)
	return err == nil && d.resolve(ctx, u, false) && d.certificate(ctx, u)
}

// ownDirectory examines the directory of the process as "doctor URL" does from elsewhere.
func (d *doctor) ownDirectory(ctx context.Context, target string, local bool) {
	u, err := url.Parse(target)
	if err != nil {
		return
	}
	h, reach := d.outside(local)
	defer h.Close()
	if !d.directory(ctx, h, reach, u) {
		d.fail("directory", "does a proxy pass /v1 on to it?", "%s/v1/agents does not answer with a list", clean(target))
	}
}

// reachable looks at name and certificate of the endpoint, as a peer meets them. named is what was found out about those
// of the process, which are the same if the endpoint is at its host.
func (d *doctor) reachable(ctx context.Context, process string, named bool) bool {
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
func (d *doctor) modes() {
	const check = "data directory"
	if runtime.GOOS == "windows" {
		d.ok(check, "%s; access is governed by its lists, which are not looked at", d.home.dir)
		return
	}
	info, err := os.Stat(d.home.dir)
	if err != nil {
		d.fail(check, "name another one with --data", "%v", err)
		return
	}
	wide := []string{}
	if info.Mode().Perm()&0o077 != 0 {
		wide = append(wide, "chmod 700 "+d.home.dir)
	}
	for _, name := range []string{fileKey, fileAge, fileCredential, fileDatabase} {
		if info, err := os.Lstat(d.home.path(name)); err == nil && info.Mode().Perm()&0o077 != 0 {
			wide = append(wide, "chmod 600 "+d.home.path(name))
		}
	}
	if len(wide) > 0 {
		d.fail(check, strings.Join(wide, " && "), "other users may look into %s", d.home.dir)
		return
	}
	d.ok(check, "%s, for its owner only", d.home.dir)
}

// roomy is the free space below which somebody should look, in bytes.
const roomy = 1 << 30

func (d *doctor) disk() {
	const check = "disk"
	cfg, err := d.app.config()
	if err != nil {
		cfg = defaultConfig()
	}
	free, err := bolt.Free(d.home.dir)
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

func (d *doctor) configuration() bool {
	const check = "configuration"
	cfg, err := d.app.checkedConfig()
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
	for _, m := range d.app.cannotRun(cfg) {
		d.fail("hook", "install it, or change the hook in the configuration", "%s", m)
	}
	for _, guard := range cfg.opened() {
		d.warn(check, "close it unless you mean it: agentmesh config check", "guard opened: %s", guard)
	}
	d.ok(check, "%s", profile)
	return true
}

// flagged corrects what configuration found if a flag of serve made the process public: flags are not remembered.
func (d *doctor) flagged(local bool) {
	if local || d.cfg.Public() {
		return
	}
	for i, f := range d.found {
		if f.Check == "configuration" && f.State == findingOK {
			d.found[i] = finding{findingWarn, f.Check, "local profile, but serve was started with flags that make it " + clean(d.status.URL),
				"write them into the configuration: other commands and the next start do not know them"}
		}
	}
}

// keys checks the secrets and that the card is that of the key.
func (d *doctor) keys() {
	const check = "keys and card"
	if !d.home.initialised() {
		d.fail(check, "agentmesh init, or agentmesh serve", "there is no agent in %s", d.home.dir)
		return
	}
	card, err := d.home.card()
	if err != nil {
		d.fail(check, "restore it from a backup", "%v", err)
		return
	}
	d.card = card
	err = d.home.checkSecrets(func() ([]byte, error) {
		if _, ok := lookup(d.app.environ, envPassphrase); !ok {
			if _, ok := lookup(d.app.environ, envPassphraseFile); !ok {
				return nil, signing.ErrNoPassphrase // a doctor asks nothing
			}
		}
		return d.app.passphrase()
	})
	f, _ := errors.AsType[*failure](err)
	switch {
	case errors.Is(err, signing.ErrNoPassphrase):
		d.warn(check, "set "+envPassphraseFile+" to have it checked", "the signing key is encrypted")
	case err != nil && f != nil && f.hint != "":
		d.fail(check, f.hint, "%v", err)
	case err != nil:
		d.fail(check, "agentmesh check says more; restore a backup into a new directory", "%v", err)
	default:
		d.ok(check, "%s", clean(card.GetStr("agent_id")))
	}
}

// socket asks whether a serve runs and takes writes.
func (d *doctor) socket(ctx context.Context) {
	const check = "serve"
	o := running(ctx, d.home.dir)
	if o == nil {
		if d.home.lostDatabase() {
			d.fail("store", "restore a backup into a new directory, or let agentmesh serve start with an empty one", "%s: %v", filepath.Base(d.home.path(fileDatabase)), errNoDatabase)
		}
		d.warn(check, "agentmesh serve", "none runs on this data directory, so nobody can reach the agent")
		return
	}
	defer o.close()
	d.running = true
	if _, err := o.call(ctx, "GET", "version", nil, nil); err != nil {
		d.fail(check, "look at its log, then start it again", "%v", err)
		return
	}
	d.ownCertificate(ctx, o)
	raw, err := o.call(ctx, "GET", "status", nil, nil)
	if err != nil {
		d.fail(check, "look at its log, then start it again", "it runs, and its status fails: %v", err)
		return
	}
	s, err := decode[owner.Status](raw)
	if err != nil {
		d.fail(check, "is it another version of agentmesh?", "%v", err)
		return
	}
	d.status = &s
	d.serving(s)
}

func (d *doctor) serving(s owner.Status) {
	switch {
	case s.AgentID == "":
		d.ok("serve", "a directory without a node runs")
	case s.Paused:
		d.warn("serve", "agentmesh resume", "it runs and is paused: senders are told to try again")
	default:
		d.ok("serve", "it runs and takes messages")
	}
	if s.Store != "ok" {
		d.fail("store", "make room on the disk, or look at the log", "%s", clean(s.Store))
	} else {
		d.ok("store", "takes writes")
	}
	if s.Approvals > 0 {
		d.warn("approvals", "agentmesh approvals", "%d wait for you", s.Approvals)
	}
}
