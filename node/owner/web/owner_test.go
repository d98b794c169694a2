package web_test

import (
	"context"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/owner/web"
)

// ownerPage is the owner's page of a member, served over TCP as agentmesh serve does.
type ownerPage struct {
	t     *testing.T
	dir   string
	addr  string
	token string
	edge  *httpapi.Owner
	links *web.DecisionLinks

	member      *meshtest.Member
	directories []string // that the configuration has besides the one of namedSetup
	doorUsed    atomic.Int64
	stop        func()
	http        *http.Client
}

// servePage serves the page of a member until the test ends, and signs a client in.
func servePage(t *testing.T, m *meshtest.Member) *ownerPage {
	t.Helper()
	dir, err := os.MkdirTemp("", "am") // short enough for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	p := &ownerPage{t: t, dir: dir, addr: "127.0.0.1:0"}
	p.start(m)
	token, err := os.ReadFile(filepath.Join(dir, httpapi.TokenFile))
	if err != nil {
		t.Fatal(err)
	}
	p.token = strings.TrimSpace(string(token))
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	p.http = &http.Client{Jar: jar, Transport: transport}
	if status, _ := p.post("login", url.Values{"secret": {p.token}}); status != http.StatusOK {
		t.Fatalf("sign-in: %d", status)
	}
	return p
}

// start serves the page of m. Later calls use the same address as the first.
func (p *ownerPage) start(m *meshtest.Member) {
	p.t.Helper()
	p.member = m
	p.edge = httpapi.NewOwner(httpapi.OwnerConfig{Dir: p.dir, Listen: p.addr, LinkHost: linkHost})
	owner.Mount(p.edge.Group(), m.OwnerAPI().Operations()...)
	web.Mount(p.edge.Pages(), m.OwnerAPI(), namedSetup{p}, nil)
	p.links = web.MountDecisions(p.edge, web.DecisionConfig{Node: m.OwnerAPI(), Records: m.Store.Records(), URL: "https://" + linkHost})
	if err := p.edge.Listen(); err != nil {
		p.t.Fatal(err)
	}
	p.addr = p.edge.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.edge.Serve(ctx) }()
	stopped := false
	p.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			p.t.Errorf("serve the owner: %v", err)
		}
	}
	p.t.Cleanup(p.stop)
}

// url returns the URL of a path below the page.
func (p *ownerPage) url(path string) string {
	return "http://" + p.addr + httpapi.PagePath + "/" + path
}

func (p *ownerPage) get(path string) (int, string) {
	p.t.Helper()
	resp, err := p.http.Get(p.url(path))
	return p.answer(resp, err)
}

func (p *ownerPage) post(path string, form url.Values) (int, string) {
	p.t.Helper()
	resp, err := p.http.PostForm(p.url(path), form)
	return p.answer(resp, err)
}

// must is get for a page that must exist.
func (p *ownerPage) must(path string) string {
	p.t.Helper()
	status, body := p.get(path)
	if status != http.StatusOK {
		p.t.Fatalf("%s: %d\n%s", path, status, body)
	}
	return body
}

func (p *ownerPage) answer(resp *http.Response, err error) (int, string) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}
