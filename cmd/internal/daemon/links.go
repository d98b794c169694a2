package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/node/atomicfile"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/node/wire"
)

// The operations of the owner API for links, which are the configured connections to other networks.
var (
	ListLinks  = owner.Endpoint[owner.None, owner.List[bridge.LinkStatus]]{Method: http.MethodGet, Path: "/links", Right: owner.Read}
	AddLink    = owner.Endpoint[NewLink, ConfigChange]{Method: http.MethodPost, Path: "/links", Right: owner.Decide}
	RemoveLink = owner.Endpoint[owner.None, ConfigChange]{Method: http.MethodDelete, Path: "/links/:name", Right: owner.Decide}
	TestLink   = owner.Endpoint[owner.None, LinkTest]{Method: http.MethodPost, Path: "/links/:name/test", Right: owner.Decide}
)

// NewLink is a link to add to the configuration. The fields are those of [bridge.Link].
type NewLink struct {
	Name        string            `json:"name"`
	Kind        string            `json:"kind"`
	URL         string            `json:"url"`
	Space       string            `json:"space,omitempty"`
	Participant string            `json:"participant,omitempty"`
	AgentID     string            `json:"agent_id,omitempty"`
	Exchange    string            `json:"exchange,omitempty"`
	Options     map[string]string `json:"options,omitempty"`
	Token       string            `json:"token,omitempty"` // the key or token that the other side requires
}

// ConfigChange is a change of the configuration file.
type ConfigChange struct {
	Name string `json:"name"` // of the link or the bridge
	// Running reports whether serve is running and applies the change at once. Otherwise serve applies it when it starts.
	Running bool `json:"running"`
	// Test is the result of testing a link that was added. It is missing if serve does not run here, or starts again.
	Test *LinkTest `json:"test,omitempty"`
}

// LinkTest is the result of testing a link.
type LinkTest struct {
	Name  string `json:"name"`
	OK    bool   `json:"ok"`
	Error string `json:"error,omitempty"`
}

// linkTestTime bounds the test of one link.
const linkTestTime = 20 * time.Second

func (p *Process) linkOperations() []owner.Operation {
	return []owner.Operation{
		ListLinks.Serve(func(echo.Context, owner.None) (owner.List[bridge.LinkStatus], error) {
			return owner.List[bridge.LinkStatus]{Items: p.links()}, nil
		}),
		AddLink.Serve(func(c echo.Context, in NewLink) (ConfigChange, error) {
			if err := httpapi.KeepOpen(c, linkTestTime); err != nil {
				return ConfigChange{}, err
			}
			return configChanger{p}.add(c.Request().Context(), in)
		}),
		RemoveLink.Serve(func(c echo.Context, _ owner.None) (ConfigChange, error) {
			return configChanger{p}.remove(c.Request().Context(), c.Param("name"))
		}),
		JoinDirectory.Serve(func(_ echo.Context, in Join) (ConfigChange, error) { return configChanger{p}.join(in) }),
		TestLink.Serve(func(c echo.Context, _ owner.None) (LinkTest, error) { return p.testLink(c, c.Param("name")) }),
	}
}

// LinkFaults describes the links that do not answer. It returns nil if the process does not list its links.
func (o *Client) LinkFaults(ctx context.Context) (faults []string) {
	page, err := Fetch(ctx, o, ListLinks.Call())
	if err != nil {
		return nil // the status of the process has the reason
	}
	for _, l := range page.Items {
		switch {
		case l.State == bridge.LinkDown:
			faults = append(faults, fmt.Sprintf("%s to %s is down: %s", l.Name, l.To, l.Error))
		case l.State != bridge.LinkUp && l.Error != "":
			faults = append(faults, fmt.Sprintf("%s to %s does not answer: %s", l.Name, l.To, l.Error))
		}
	}
	return faults
}

func (p *Process) links() []bridge.LinkStatus {
	out := []bridge.LinkStatus{}
	for _, b := range p.bridges {
		out = append(out, b.Links()...)
	}
	return out
}

// testLink tests a link for the owner.
func (p *Process) testLink(c echo.Context, name string) (LinkTest, error) {
	b := p.bridgeOfLink(name)
	if err := p.rerun.failure(); b == nil && err != nil {
		return LinkTest{}, refuseChange(fmt.Errorf("not added: %w", err))
	}
	if b == nil {
		return LinkTest{}, owner.Fault(http.StatusNotFound, "there is no such link", "list the links with: agentmesh links list")
	}
	if p.hosting.isElsewhere() { // a second connection would take the place of the link that runs there
		return LinkTest{}, p.hosting.refuse(c.Request().Context(), p)
	}
	if err := httpapi.KeepOpen(c, linkTestTime); err != nil {
		return LinkTest{}, err
	}
	t, _ := tryLink(c.Request().Context(), b, name)
	return t, nil
}

// tryLink tests a link, and also returns the error.
func tryLink(ctx context.Context, b bridge.Service, name string) (LinkTest, error) {
	ctx, cancel := context.WithTimeout(ctx, linkTestTime)
	defer cancel()
	if err := b.Test(ctx, name); err != nil {
		return LinkTest{Name: name, Error: err.Error()}, err
	}
	return LinkTest{Name: name, OK: true}, nil
}

// configChanger changes the configuration file of a process.
type configChanger struct{ p *Process }

// add adds a link to the configuration file, and stores the token of the link in a file of the data directory.
func (c configChanger) add(ctx context.Context, in NewLink) (ConfigChange, error) {
	l := bridge.Link{
		Name: in.Name, Kind: in.Kind, URL: in.URL, Space: in.Space, Participant: in.Participant, AgentID: in.AgentID, Exchange: in.Exchange, Options: in.Options,
	}
	if err := l.Validate(); err != nil { // before the name becomes the name of a file
		return ConfigChange{}, refuseChange(err)
	}
	if c.p.src.Overrides("links") {
		return ConfigChange{}, refuseChange(errors.New("links is set by a flag or an environment variable"))
	}
	token, file := strings.TrimSpace(in.Token), c.tokenFile(l.Name)
	if token != "" {
		var err error
		if l.TokenFile, err = c.p.src.ShortenPath(file); err != nil {
			return ConfigChange{}, err
		}
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			return ConfigChange{}, fmt.Errorf("store the token: %w", err)
		}
	}
	var live func() (*LinkTest, error)
	if c.canChangeLive(l.Kind, l.Name) {
		live = func() (*LinkTest, error) { return c.startNew(ctx, l) }
	}
	return c.apply(l.Name, live, func() error {
		err := c.p.src.AddLink(l, LinkKinds())
		if err != nil || token == "" {
			return err // after an error, the token of an existing link with this name stays as it is
		}
		if err = atomicfile.Write(file, []byte(token+"\n")); err != nil {
			err = errors.Join(fmt.Errorf("store the token: %w", err), c.p.src.RemoveLink(l.Name, LinkKinds()))
		}
		return err
	}, file)
}

// remove removes a link from the configuration file, and the token that add stored.
func (c configChanger) remove(ctx context.Context, name string) (ConfigChange, error) {
	if err := (bridge.Link{Name: name, Kind: "x", Dir: "x"}).Validate(); err != nil { // checks the name before it becomes the name of a file
		return ConfigChange{}, refuseChange(fmt.Errorf("%w %s", config.ErrNoLink, wire.OneLine(name, 100)))
	}
	token := c.tokenFile(name)
	var live func() (*LinkTest, error)
	for _, l := range c.p.links() {
		if l.Name == name && c.canChangeLive(l.Kind, name) {
			live = func() (*LinkTest, error) { c.p.stopLink(ctx, l.Kind, name); return nil, nil }
		}
	}
	return c.apply(name, live, func() error {
		err := c.p.src.RemoveLink(name, LinkKinds())
		if err == nil {
			_ = os.Remove(token) // a link may have no token
		}
		return err
	}, token)
}

func (c configChanger) tokenFile(name string) string {
	return c.p.dataDir.Path(filepath.Join("links", name+".token"))
}

// canChangeLive reports whether this process can start or stop a link without starting again. The names of the links to
// what it hosts are not free: a configured link takes the place of such a link.
func (c configChanger) canChangeLive(kind, name string) bool {
	return c.p.rerun.stop != nil && c.p.findBridge(kind) != nil && name != ownRelayLink && !strings.HasPrefix(name, "own-")
}

// startNew starts a link and tests it. If the link can never work as it is configured, startNew stops it again
// and returns the reason.
func (c configChanger) startNew(ctx context.Context, l bridge.Link) (*LinkTest, error) {
	if err := c.p.startLink(ctx, l); err != nil {
		return nil, fmt.Errorf("not added: %w", err)
	}
	if c.p.hosting.isElsewhere() {
		return nil, nil
	}
	tested, err := tryLink(ctx, c.p.findBridge(l.Kind), l.Name)
	if fault, ok := errors.AsType[*bridge.LinkFault](err); ok {
		c.p.stopLink(ctx, l.Kind, l.Name)
		return nil, owner.Fault(http.StatusBadRequest, "not added: "+fault.Why.Error(), fault.Fix)
	}
	return &tested, nil
}

// apply calls change, which changes the configuration file and perhaps the given files. If serve is running, apply then
// calls live, which makes serve follow the change, or makes serve start again if live is nil. If serve cannot follow or
// start with the new configuration, the files are restored.
func (c configChanger) apply(name string, live func() (*LinkTest, error), change func() error, files ...string) (ConfigChange, error) {
	c.p.rerun.editing.Lock()
	defer c.p.rerun.editing.Unlock()
	var undo []func() error
	for _, path := range append([]string{c.p.src.File}, files...) {
		restore, err := snapshot(path)
		if err != nil {
			return ConfigChange{}, err
		}
		undo = append(undo, restore)
	}
	if err := change(); err != nil {
		return ConfigChange{}, refuseChange(err)
	}
	restoreAll := func() (err error) {
		for _, restore := range undo {
			err = errors.Join(err, restore())
		}
		return err
	}
	if live != nil {
		tested, err := live()
		if err != nil {
			if undone := restoreAll(); undone != nil {
				return ConfigChange{}, errors.Join(err, undone)
			}
			return ConfigChange{}, refuseChange(err)
		}
		return ConfigChange{Name: name, Running: true, Test: tested}, nil
	}
	running := c.p.rerun.restartOrUndo(restoreAll)
	return ConfigChange{Name: name, Running: running}, nil
}

// snapshot reads a file, or the file to which a symbolic link leads, and returns a function that restores its content.
func snapshot(path string) (restore func() error, err error) {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return func() error {
			if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			return nil
		}, nil
	}
	var data []byte
	if err == nil {
		data, err = os.ReadFile(path)
	}
	if err != nil {
		return nil, fmt.Errorf("copy the file before the change: %w", err)
	}
	return func() error {
		return atomicfile.WriteFunc(path, func(f *os.File) error {
			_, err := f.Write(data)
			return errors.Join(err, f.Chmod(info.Mode().Perm()))
		})
	}, nil
}

// refuseChange returns the error for a change of the configuration that failed.
func refuseChange(err error) error {
	if fault, ok := errors.AsType[*wire.Error](err); ok {
		return fault
	}
	if errors.Is(err, config.ErrNoLink) {
		return owner.Fault(http.StatusNotFound, err.Error(), "")
	}
	return owner.Fault(http.StatusBadRequest, err.Error(), "")
}

// Join is the order to join a directory.
type Join struct {
	Link string `json:"link"` // https://mesh.example.org/join#CODE
}

// JoinDirectory adds a directory to the configuration. The name in its answer is the base URL.
var JoinDirectory = owner.Endpoint[Join, ConfigChange]{Method: http.MethodPost, Path: "/directories", Right: owner.Decide}

// join adds a directory to the configuration file, and its link to the file with the codes. The directory keeps the mail
// of a node that nobody can connect to.
func (c configChanger) join(in Join) (ConfigChange, error) {
	base, _, err := client.ParseJoinLink(in.Link)
	if err != nil {
		return ConfigChange{}, refuseChange(err)
	}
	directories := c.p.cfg.DirectoryURLs()
	if c.p.cfg.Public() && len(directories) == 0 { // the node stays in the directory of this process
		for _, d := range c.p.directories {
			directories = append(directories, d.Base)
		}
	}
	return c.apply(base, nil, func() error { return c.rewrite(nil, append(slices.Clone(directories), in.Link)) }, c.p.dataDir.Path(datadir.FileInvites))
}

// rewrite makes the edits, and lists the directories in the configuration file. A link to join one goes to the file with the
// codes. The first of these directories keeps the mail of a node that nobody can connect to.
func (c configChanger) rewrite(edits []config.Edit, directories []string) error {
	cfg, file, relay := c.p.cfg, c.p.dataDir.Path(datadir.FileInvites), ""
	var joined, links []string
	for _, d := range directories {
		if base, code, err := client.ParseJoinLink(d); err == nil {
			if relay = cmp.Or(relay, base); code != "" {
				links = append(links, strings.TrimSpace(d))
			}
			d = base
		}
		if !slices.Contains(joined, d) {
			joined = append(joined, d)
		}
	}
	if !slices.Equal(joined, cfg.DirectoryURLs()) && !c.p.src.Overrides("directories") {
		edits = append(edits, config.Edit{Key: "directories", Value: joined})
	}
	if relay != "" && !cfg.Public() && cfg.ViaRelay == "" && cfg.Card.Endpoint == "" {
		edits = append(edits, config.Edit{Key: "via_relay", Value: relay})
	}
	if len(links) > 0 {
		known, err := c.p.src.InviteCode("invite_file", cfg.InviteFile)
		if err != nil {
			return err
		}
		name, err := c.p.src.ShortenPath(file)
		if err != nil {
			return err
		}
		if err := atomicfile.Write(file, []byte(strings.Join(append(links, known), "\n")+"\n")); err != nil { // of two links to one directory, the first counts
			return fmt.Errorf("store the link: %w", err)
		}
		edits = append(edits, config.Edit{Key: "invite_file", Value: name})
	}
	return c.p.src.Rewrite(edits, LinkKinds())
}

// restartTime is how long serve may take until it answers with a new configuration.
const restartTime = 10 * time.Second

// AwaitChange makes a call that needs a change of the configuration, as soon as serve has started again.
func AwaitChange[T any](ctx context.Context, o *Client, call owner.Call[T]) (answer T, err error) {
	for end := time.Now().Add(restartTime); ; {
		if serve := Running(ctx, string(o.dataDir)); serve != nil {
			answer, err = Fetch(ctx, serve, call)
			err = errors.Join(err, serve.Close())
			if err == nil || exit.Code(err) == exit.Input || time.Now().After(end) { // exit.Input: serve has undone the change
				return answer, err
			}
		}
		if time.Now().After(end) {
			return answer, exit.FailHint(exit.Unavailable, errors.New("serve does not answer after the change"), "read the log of agentmesh serve")
		}
		if !waiting.Pause(ctx, 100*time.Millisecond) {
			return answer, ctx.Err()
		}
	}
}
