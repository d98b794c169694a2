//go:build slow

package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
)

const meshName = "mesh.example.org"

// tlsServe is a serve that ends TLS itself.
type tlsServe struct {
	t     *testing.T
	data  string
	roots *x509.CertPool
	*serveProcess
	secure, plain string // addresses
	authority     string
}

// serveTLS starts a serve that gets its certificate from p, and kills it when the test ends.
func serveTLS(t *testing.T, p *pebble, data string, plain bool, more ...string) *tlsServe {
	t.Helper()
	s := &tlsServe{t: t, data: data, secure: "127.0.0.1:" + p.tlsPort, authority: p.directory}
	args := []string{"--tls", meshName, "--listen", s.secure, "--set", "tls.authority=" + p.directory}
	if plain {
		s.plain = "127.0.0.1:" + p.httpPort
	}
	s.run(append(append(args, "--set", "tls.plain_listen="+s.plain), more...), "SSL_CERT_FILE="+p.root)
	return s
}

func (s *tlsServe) run(args []string, env ...string) {
	s.t.Helper()
	var err error
	if s.serveProcess, err = startServe(s.data, args, append(os.Environ(), env...)); err != nil {
		s.t.Fatal(err)
	}
	server := s.serveProcess
	s.t.Cleanup(func() {
		server.Process.Kill()
		server.Wait()
		if s.t.Failed() {
			s.t.Logf("serve: %s", server.log)
		}
	})
}

func (s *tlsServe) stop() {
	s.t.Helper()
	if err := s.Process.Signal(os.Interrupt); err != nil {
		s.t.Fatal(err)
	}
	if err := s.Wait(); err != nil {
		s.t.Fatalf("serve failed: %v\n%s", err, s.log)
	}
}

// dial connects with a server name, as a peer does.
func (s *tlsServe) dial(name string) (tls.ConnectionState, error) {
	d := tls.Dialer{NetDialer: &net.Dialer{Timeout: 10 * time.Second}, Config: &tls.Config{RootCAs: s.roots, ServerName: name}}
	conn, err := d.DialContext(s.t.Context(), "tcp", s.secure)
	if err != nil {
		return tls.ConnectionState{}, err
	}
	defer conn.Close()
	return conn.(*tls.Conn).ConnectionState(), nil
}

// leaf waits until serve has a certificate, and returns it.
func (s *tlsServe) leaf() *x509.Certificate {
	s.t.Helper()
	var leaf *x509.Certificate
	waitFor(s.t, "a certificate", func() bool {
		state, err := s.dial(meshName)
		if err == nil {
			leaf = state.PeerCertificates[0]
		}
		return err == nil
	})
	return leaf
}

func (s *tlsServe) get(path string) *http.Response {
	s.t.Helper()
	c := http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: s.roots, ServerName: meshName}, ForceAttemptHTTP2: true, DisableKeepAlives: true,
	}}
	return s.answer(c.Get("https://" + s.secure + path))
}

func (s *tlsServe) answer(resp *http.Response, err error) *http.Response {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil {
		s.t.Fatal(err)
	}
	resp.Body = io.NopCloser(strings.NewReader(string(body)))
	return resp
}

// TestTLS: one flag gets a certificate from a real authority, and strangers get what they should from the HTTPS and
// HTTP listeners. Connections with foreign names and a restart make no requests to the authority.
func TestTLS(t *testing.T) {
	t.Parallel()
	p := newPebble(t, 90*24*time.Hour)
	p.start(t)
	s := serveTLS(t, p, filepath.Join(t.TempDir(), "data"), true)
	s.roots = p.roots(t)
	leaf := s.leaf()
	if got := readCertificate(t, s.data); !got.TLS || got.Error != "" || !got.NotAfter.Equal(leaf.NotAfter) || got.Authority != p.directory {
		t.Errorf("the owner API reports %+v, the certificate ends %v", got, leaf.NotAfter)
	}

	resp := s.get("/readyz")
	if resp.StatusCode != http.StatusOK || resp.ProtoMajor != 2 || resp.Header.Get("Strict-Transport-Security") != "max-age=2592000" {
		t.Errorf("GET /readyz: %s over %s, %v", resp.Status, resp.Proto, resp.Header)
	}
	if resp := s.get("/owner/status"); resp.StatusCode != http.StatusNotFound {
		t.Errorf("the owner API is on the public listener: %s", resp.Status)
	}
	s.checkPlain()
	s.checkModes()
	s.checkOldTLS()

	before := p.orders()
	if before == 0 {
		t.Error("pebble's log shows no stored objects: this test sees too little")
	}
	s.flood(300)
	if state, err := s.dial(meshName); err != nil || !state.PeerCertificates[0].Equal(leaf) {
		t.Errorf("after the flood: %v", err)
	}
	s.stop()
	s.checkBackup()

	s = serveTLS(t, p, s.data, true)
	s.roots = p.roots(t)
	if again := s.leaf(); !again.Equal(leaf) {
		t.Error("a restart got another certificate")
	}
	if after := p.orders(); after != before {
		t.Errorf("pebble stored %d objects before flood and restart, %d after", before, after)
	}
	s.stop()
}

// checkPlain checks that plain HTTP only redirects to https.
func (s *tlsServe) checkPlain() {
	s.t.Helper()
	c := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	do := func(method, path string) *http.Response {
		req, err := http.NewRequest(method, "http://"+s.plain+path, strings.NewReader(""))
		if err != nil {
			s.t.Fatal(err)
		}
		req.Host = "evil.example"
		return s.answer(c.Do(req))
	}
	for path, want := range map[string]string{"/": "/", "/v1/agents?q=a%20b": "/v1/agents?q=a%20b", "/owner/status": "/owner/status", "//evil.example/": "//evil.example/"} {
		resp := do(http.MethodGet, path)
		if to := resp.Header.Get("Location"); resp.StatusCode != http.StatusPermanentRedirect || to != "https://"+meshName+want {
			s.t.Errorf("GET %s over http: %s to %q", path, resp.Status, to)
		}
	}
	if resp := do(http.MethodPost, "/agentmesh"); resp.StatusCode != http.StatusBadRequest {
		s.t.Errorf("POST over http: %s", resp.Status)
	}
	for _, token := range []string{"x", strings.Repeat("x", 5000), "..%2f..%2fsigning.key", "acme_account+key", "%00", meshName} {
		resp := do(http.MethodGet, "/.well-known/acme-challenge/"+token)
		body, _ := io.ReadAll(resp.Body)
		if resp.StatusCode < 400 || strings.Contains(string(body), s.data) || strings.Contains(string(body), "PRIVATE") {
			s.t.Errorf("challenge %.30q: %s %q", token, resp.Status, body)
		}
	}
}

// checkModes checks that only the owner may read the account key and the certificate, and that nothing else is stored.
func (s *tlsServe) checkModes() {
	s.t.Helper()
	dir := filepath.Join(s.data, daemon.ACMEFolder(s.authority))
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm() != 0o700 {
		s.t.Fatalf("%s: %v, %v", dir, info, err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 {
		s.t.Errorf("%s holds %v, %v", dir, entries, err)
	}
	for _, e := range entries {
		if info, err := e.Info(); err != nil || info.Mode() != 0o600 {
			s.t.Errorf("%s: %v, %v", e.Name(), info.Mode(), err)
		}
	}
}

// checkBackup checks that a restored data directory has the certificate, with the right modes.
func (s *tlsServe) checkBackup() {
	s.t.Helper()
	archive, restored := filepath.Join(s.t.TempDir(), "archive.zip"), filepath.Join(s.t.TempDir(), "data")
	mustRun(s.t, s.data, "backup", archive)
	mustRun(s.t, restored, "restore", archive)
	(&tlsServe{t: s.t, data: restored, authority: s.authority}).checkModes()
}

func (s *tlsServe) checkOldTLS() {
	s.t.Helper()
	conn, err := tls.Dial("tcp", s.secure, &tls.Config{RootCAs: s.roots, ServerName: meshName, MaxVersion: tls.VersionTLS11})
	if err == nil {
		conn.Close()
		s.t.Error("serve accepts TLS 1.1")
	}
}

// flood connects with n foreign server names and a few odd ones, with and without the protocol of a challenge.
func (s *tlsServe) flood(n int) {
	s.t.Helper()
	names := make(chan string)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for name := range names {
				for _, protocols := range [][]string{{"h2"}, {"acme-tls/1"}} {
					raw, err := net.Dial("tcp", s.secure)
					if err != nil {
						s.t.Error(err)
						continue
					}
					raw.SetDeadline(time.Now().Add(30 * time.Second))
					if err := tls.Client(raw, &tls.Config{ServerName: name, NextProtos: protocols, InsecureSkipVerify: true}).Handshake(); err == nil {
						s.t.Errorf("%q got a certificate by %v", name, protocols)
					}
					raw.Close()
				}
			}
		})
	}
	for i := range n {
		names <- fmt.Sprintf("x%d.%s", i, meshName)
	}
	for _, name := range []string{"", "example.org", "127.0.0.1", "acme_account+key", strings.Repeat("a.", 100) + "org"} {
		names <- name
	}
	close(names)
	all.Wait()
	s.checkModes()
}

// TestTLSChallenges: each kind of challenge is sufficient by itself.
func TestTLSChallenges(t *testing.T) {
	t.Parallel()
	t.Run("TLS-ALPN-01", func(t *testing.T) {
		p := newPebble(t, time.Hour)
		p.start(t)
		s := serveTLS(t, p, filepath.Join(t.TempDir(), "data"), false)
		s.roots = p.roots(t)
		s.leaf()
	})
	t.Run("HTTP-01", func(t *testing.T) {
		p := newPebble(t, time.Hour)
		p.start(t)
		asked := *p
		asked.tlsPort = freePort(t) // nobody listens on the port that pebble connects to
		s := serveTLS(t, &asked, filepath.Join(t.TempDir(), "data"), true)
		s.roots = p.roots(t)
		s.leaf()
	})
}

// TestTLSRenewal: serve replaces a certificate before it expires, without refusing connections.
func TestTLSRenewal(t *testing.T) {
	t.Parallel()
	p := newPebble(t, 45*time.Second)
	p.start(t)
	s := serveTLS(t, p, filepath.Join(t.TempDir(), "data"), true)
	s.roots = p.roots(t)
	first := s.leaf()
	waitFor(t, "another certificate", func() bool {
		state, err := s.dial(meshName)
		if _, bad := errors.AsType[*tls.CertificateVerificationError](err); bad && time.Now().Before(first.NotAfter) {
			t.Fatalf("between two certificates: %v", err)
		}
		return err == nil && !state.PeerCertificates[0].Equal(first)
	})
}

// TestTLSWithoutAuthority: a process that gets no certificate keeps running, reports the authority's reason, and gets a
// certificate as soon as it is possible.
func TestTLSWithoutAuthority(t *testing.T) {
	t.Parallel()
	p := newPebble(t, time.Hour)
	s := serveTLS(t, p, filepath.Join(t.TempDir(), "data"), true)
	waitFor(t, "the reason", func() bool { return strings.Contains(readCertificate(t, s.data).Error, "refused") })
	if _, err := s.dial(meshName); err == nil {
		t.Error("somebody could connect")
	}
	p.start(t)
	s.roots = p.roots(t)
	s.leaf()
	s.stop()

	lost := newPebble(t, time.Hour) // connects to ports on which nobody listens
	lost.start(t)
	asked := *lost
	asked.tlsPort, asked.httpPort = freePort(t), freePort(t)
	s = serveTLS(t, &asked, filepath.Join(t.TempDir(), "data"), true)
	waitFor(t, "the authority's reason", func() bool {
		reason := readCertificate(t, s.data).Error
		return strings.Contains(reason, "the authority reports: http-01: ") && strings.Contains(reason, lost.httpPort)
	})
}
