package mess

import (
	"bytes"
	"encoding/base64"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/bridge/bridgetest"
	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/meshtest"
)

func dataURI(mime string, data []byte) string {
	return "data:" + mime + ";base64," + base64.StdEncoding.EncodeToString(data)
}

// TestSharedAttachment: a large attachment is sent between nodes as an address that cannot be guessed, and the other
// owner can fetch it in full.
func TestSharedAttachment(t *testing.T) {
	e := echo.New()
	srv := httptest.NewServer(e)
	defer srv.Close()
	mesh := meshtest.New(t)
	away := newMeshNode(t, mesh, "away", func(c *Config) { c.URL = srv.URL })
	away.bridge.Mount(e)
	away.executor("bob")
	home := newMeshNode(t, mesh, "home", func(c *Config) {
		c.HTTP = client.NewHTTP(client.HTTPConfig{Local: true})
		c.Mesh = listAgents(c.Mesh, away.node.ID())
	})
	ref := home.request("client", "{intent: look into the fridge}")
	home.decide(askRoute, acl.Approve)
	photo := bytes.Repeat([]byte("\xff\xd8\xffphoto"), 50_000)
	there := away.waitMeshThread()
	away.status("bob", there, "claimed")
	away.do("bob", "- response: {re: "+there+", content: [{image: \""+dataURI("image/jpeg", photo)+"\"}]}")
	home.waitStatus(ref, thread.Completed)
	messages, err := home.Messages(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	refs := listReferences(messages[len(messages)-1])
	if len(refs) != 1 || !strings.HasPrefix(refs[0].uri, srv.URL) || len(refs[0].digest) != 64 {
		t.Fatalf("references = %+v in %.300s", refs, home.allText(ref))
	}
	for range 2 { // the second time it is stored already
		a, err := home.bridge.Fetch(t.Context(), ref, refs[0].uri)
		if err != nil || !bytes.Equal(a.Data, photo) || a.Mime != "image/jpeg" {
			t.Fatalf("fetched %d bytes of %s, %v", len(a.Data), a.Mime, err)
		}
	}
	get := func(uri string) int {
		t.Helper()
		resp, err := http.Get(uri)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode
	}
	if code := get(refs[0].uri[:len(refs[0].uri)-1] + "g"); code != 401 {
		t.Errorf("another token: %d", code)
	}
	if code := get(strings.Replace(refs[0].uri, "/att-", "/att-9", 1)); code != 401 {
		t.Errorf("another file: %d", code)
	}
	if code := get(strings.Replace(refs[0].uri, "shared", "requests", 1)); code != 401 {
		t.Errorf("without a key: %d", code)
	}
}

// TestFetchIsGuarded: only what a thread names by https at a public address is fetched, and only when the owner asks.
func TestFetchIsGuarded(t *testing.T) {
	var called atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { called.Add(1) }))
	defer srv.Close()
	l := newLab(t)
	b, err := New(Config{Exchange: l.Exchange, Store: l.store, Mesh: bridgetest.NewMesh(nil, l.store), Local: true, HTTP: client.NewHTTP(client.HTTPConfig{Local: true})})
	if err != nil {
		t.Fatal(err)
	}
	port := srv.URL[strings.LastIndexByte(srv.URL, ':'):]
	uris := []string{
		srv.URL + "/x.jpg", "https://127.0.0.1" + port + "/x.jpg", "https://localhost" + port + "/x", "https://169.254.169.254/latest", "https://[::1]" + port + "/x",
		srv.URL + "/api/v1/exchanges/home/requests/x/attachments/y", "file:///etc/passwd", "https://user:pass@example.com/x", "https://example.com:22/x", "content://x/y",
	}
	for _, uri := range uris {
		ref := l.request("agent", "{intent: look, context: [{image: '"+uri+"'}, {url: 'https://example.com'}]}")
		if _, err := b.Fetch(t.Context(), ref, uri); err == nil {
			t.Errorf("%s was fetched", uri)
		}
		if _, err := b.Fetch(t.Context(), ref, srv.URL+"/api/v1/exchanges/home/shared/x/attachments/y?token=z"); statusOf(err) != 404 {
			t.Errorf("an address that the thread does not name: %v", err)
		}
	}
	if n := called.Load(); n != 0 {
		t.Errorf("%d calls were made", n)
	}
}

// TestOwnFile: file:// in the owner's own request is read from one folder and sent as an attachment; in a stranger's
// request it is text.
func TestOwnFile(t *testing.T) {
	dir := t.TempDir()
	files := filepath.Join(dir, "files")
	for name, data := range map[string]string{"files/sub/photo.jpg": "\xff\xd8\xffphoto", "files/empty": "", "secret": "secret"} {
		at := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(dir, "secret"), filepath.Join(files, "link")); err != nil {
		t.Fatal(err)
	}
	l := newLab(t)
	text := l.request(thread.OwnerID, "{intent: look, context: [{image: 'file://sub/photo.jpg'}]}") // no folder is configured
	l.Exchange = exchange.New(exchange.Config{Store: l.store, Files: files, ThreadsPerHour: -1, CallsPerMinute: -1, RegistrationsPerHour: -1})
	for _, uri := range []string{"file://sub/photo.jpg", "file://" + files + "/sub/photo.jpg"} {
		ref := l.request(thread.OwnerID, "{intent: look, context: [{image: '"+uri+"'}, {file: {uri: '"+uri+"', name: mine.jpg}}]}")
		names, err := l.Attachments(t.Context(), ref)
		if err != nil || len(names) != 2 || !strings.HasSuffix(names[1], "photo.jpg") || !strings.HasSuffix(names[0], "mine.jpg") {
			t.Errorf("%s became %v, %v", uri, names, err)
			continue
		}
		if a, err := l.Attachment(t.Context(), exchange.Owner("test"), ref, names[1]); err != nil || string(a.Data) != "\xff\xd8\xffphoto" || a.Mime != "image/jpeg" {
			t.Errorf("%s became %q of %s, %v", uri, a.Data, a.Mime, err)
		}
	}
	for _, uri := range []string{
		"file://../secret", "file://sub/../../secret", "file://" + dir + "/secret", "file:///etc/passwd", "file://link", "file://%2e%2e/secret", "file://sub", "file://empty",
		"file://nothing", "file://", "file://" + strings.Repeat("a", 300), `file://..\secret`,
	} {
		l.refuse(400, thread.OwnerID, "- request: {intent: look, context: [{file: '"+uri+"'}]}")
	}
	for _, ref := range []string{text, l.request("agent", "{intent: look, context: [{image: 'file://sub/photo.jpg'}]}")} {
		if names, err := l.Attachments(t.Context(), ref); err != nil || len(names) != 0 {
			t.Errorf("%s has %v, %v", ref, names, err)
		}
	}
}

// TestFetchedFileOfUnknownKind: the name of a fetched file is one that an attachment may have, whatever kind of content
// names the file, and a later fetch finds it.
func TestFetchedFileOfUnknownKind(t *testing.T) {
	for _, kind := range []string{"image", "x", "file"} {
		r := reference{serial: 2, kind: kind, uri: "content://2026-01-31-001/att-002-image-a.png"}
		file, prefix := r.file("a.png", "image/png")
		if _, again := r.file("", ""); !thread.IsAttachmentName(file) || !strings.HasPrefix(file, prefix) || again != prefix {
			t.Errorf("kind %s: %s, with the prefixes %s and %s", kind, file, prefix, again)
		}
	}
}
