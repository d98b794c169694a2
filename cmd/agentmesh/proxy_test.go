//go:build slow

package main

import (
	"bytes"
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

// The client addresses that the tests pretend. All requests really come from this machine.
const (
	headerTestClient = "X-Test-Client"
	attackerAddr     = "198.51.100.66"
	honestAddr       = "203.0.113.9"
)

// frontend is a process behind a reverse proxy or a tunnel that ends TLS.
type frontend struct {
	t       *testing.T
	serve   *tlsServe
	flags   []string
	address string
	header  string // request header with which a test names the client
	client  *http.Client
	cert    string
}

// startFrontend starts the README's proxy command behind a reverse proxy, or behind a tunnel if forward is nil.
func startFrontend(t *testing.T, forward func(*httputil.ProxyRequest), more ...string) *frontend {
	t.Helper()
	dir := t.TempDir()
	f := &frontend{t: t, cert: filepath.Join(dir, "cert.pem"), header: headerTestClient}
	keyFile := filepath.Join(dir, "key.pem")
	writeCertificate(t, f.cert, keyFile, 90*24*time.Hour, "127.0.0.1")
	pair, err := tls.LoadX509KeyPair(f.cert, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	f.address = "https://" + l.Addr().String()
	f.flags = append([]string{"--set", "public_url=" + f.address, "--set", "network.allow_private=127.0.0.0/8", "--set", "access.mode=open"}, more...)
	f.serve = &tlsServe{t: t, data: filepath.Join(dir, "data")}
	f.serve.run(f.flags)
	f.client = &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true,
	}}
	if forward == nil {
		go tunnel(l, f.serve.info.Address)
		return f
	}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(&url.URL{Scheme: "http", Host: f.serve.info.Address})
		r.Out.Header["X-Forwarded-For"] = r.In.Header["X-Forwarded-For"]
		forward(r)
		r.Out.Header.Del(headerTestClient)
	}}
	srv := &http.Server{Handler: proxy, ErrorLog: log.New(io.Discard, "", 0)} // doctor closes its connection after the TLS handshake
	go srv.Serve(l)
	t.Cleanup(func() { srv.Close() })
	return f
}

// tunnel forwards connections to an address, as ssh -R and HAProxy in TCP mode do.
func tunnel(l net.Listener, to string) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			inside, err := net.Dial("tcp", to)
			if err != nil {
				return
			}
			defer inside.Close()
			go func() {
				io.Copy(inside, conn)
				inside.Close()
			}()
			io.Copy(conn, inside)
		}()
	}
}

func (f *frontend) post(from, path string, body []byte, headers ...string) (int, string) {
	return f.call(http.MethodPost, from, path, body, headers...)
}

// call makes a request from a client's address, with headers in pairs.
func (f *frontend) call(method, from, path string, body []byte, headers ...string) (int, string) {
	req, err := http.NewRequestWithContext(f.t.Context(), method, f.address+path, bytes.NewReader(body))
	if err != nil {
		f.t.Error(err)
		return 0, ""
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(f.header, from)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := f.client.Do(req)
	if err != nil {
		f.t.Error(err)
		return 0, ""
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		f.t.Error(err)
	}
	return resp.StatusCode, string(text)
}

func (f *frontend) register(from, name string) wire.Card {
	f.t.Helper()
	return f.registerWith(from, name, "credential-of-"+name)
}

// registerWith is like register, with a credential that several agents may share.
func (f *frontend) registerWith(from, name, credential string) wire.Card {
	f.t.Helper()
	card := meshtest.Card(f.t, name, "https://"+name+".example.org/agentmesh")
	if status, body := f.post(from, "/v1/agents", card.Tree.JSON(), "Authorization", "Bearer "+credential); status != http.StatusCreated {
		f.t.Fatalf("register %s from %s: %d %s", name, from, status, body)
	}
	return card
}

// message returns a message with a text from an agent to the process. The key may be another agent's.
func (f *frontend) message(from wire.AgentID, key *signing.PrivateKey, text string) []byte {
	f.t.Helper()
	payload, err := wire.ParseObject([]byte(`{"action":"deliver","message":{"body":"` + text + `"}}`))
	if err != nil {
		f.t.Fatal(err)
	}
	draft := wire.Draft{
		ID: wire.NewMessageID(), Conversation: wire.NewConversationID(), From: from, To: f.serve.info.AgentID,
		Time: time.Now(), Intent: wire.Deliver, Payload: payload,
	}
	signed, err := key.SignValue(draft.Tree())
	if err != nil {
		f.t.Fatal(err)
	}
	return signed.JSON()
}

func (f *frontend) command(name string) string {
	f.t.Helper()
	args := []string{name}
	if name == "doctor" {
		args = append(args, f.flags...)
	}
	cmd := agentmeshAt(f.serve.data, args...)
	cmd.Env = append(os.Environ(), "SSL_CERT_FILE="+f.cert)
	out, err := cmd.Output()
	if err != nil && !strings.Contains(string(out), "\nfail ") {
		f.t.Errorf("%s: %v\n%s", name, err, out)
	}
	return string(out)
}

// TestForgersBehindProxies sends thirty forged messages, some with another client's address in X-Forwarded-For. The
// other client is still served behind a proxy that sets the header, behind a proxy that does not, and through a
// tunnel. status and doctor report what the process sees (AM-43, THREATS 33).
func TestForgersBehindProxies(t *testing.T) {
	t.Parallel()
	appendClient := func(r *httputil.ProxyRequest) { // as nginx with $proxy_add_x_forwarded_for
		client := r.In.Header.Get(headerTestClient)
		if client == "" {
			client = "203.0.113.77"
		}
		r.Out.Header["X-Forwarded-For"] = append(r.Out.Header["X-Forwarded-For"], client)
	}
	removeHeader := func(r *httputil.ProxyRequest) { r.Out.Header.Del("X-Forwarded-For") }
	keepHeader := func(*httputil.ProxyRequest) {} // as nginx without proxy_set_header
	const none = "network.trusted_proxies=none"
	const sharedRow = `(?m)^clients +\d+ requests did not name their client`
	for name, tt := range map[string]struct {
		forward func(*httputil.ProxyRequest)
		more    []string
		barred  bool   // the attacker's own address is refused
		doctor  string // the line of doctor about clients
		status  bool   // status reports that clients share an allowance
	}{
		"a proxy that sets the header":        {appendClient, nil, true, `ok +clients +the process distinguishes clients`, false},
		"a listed proxy that sets the header": {appendClient, []string{"--set", "network.trusted_proxies=127.0.0.1/32"}, true, `ok +clients +the process distinguishes clients`, false},
		"a proxy without the header":          {removeHeader, nil, false, `warn +clients +the proxy does not name its clients`, true},
		"a listed proxy without the header":   {removeHeader, []string{"--set", "network.trusted_proxies=127.0.0.1/32"}, false, `warn +clients +the proxy does not name`, true},
		"a proxy that passes the header on":   {keepHeader, nil, false, `fail +clients +a forged X-Forwarded-For is trusted`, true},
		"a tunnel":                            {nil, nil, false, `fail +clients +a forged X-Forwarded-For is trusted`, true},
		"a tunnel in the configuration":       {nil, []string{"--set", none}, false, `ok +clients +a tunnel hides the clients`, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := startFrontend(t, tt.forward, tt.more...)
			victim, honest := f.register(attackerAddr, "victim"), f.register(honestAddr, "honest")
			var forgers sync.WaitGroup
			for i := range 30 {
				body := f.message(victim.ID, meshtest.Key("mallory"), "hello")
				var headers []string
				if i%2 == 0 {
					headers = []string{"X-Forwarded-For", honestAddr}
				}
				forgers.Go(func() {
					if status, answer := f.post(attackerAddr, "/agentmesh", body, headers...); status != http.StatusUnauthorized && status != http.StatusTooManyRequests {
						t.Errorf("a forged message is answered %d %s", status, answer)
					}
				})
			}
			forgers.Wait()
			start := time.Now()
			if status, answer := f.post(honestAddr, "/agentmesh", f.message(honest.ID, meshtest.Key("honest"), "hello")); status >= 300 {
				t.Errorf("after 30 forged messages another client is answered %d %s", status, answer)
			}
			if took := time.Since(start); took > 5*time.Second {
				t.Errorf("another client waits for %v", took)
			}
			want := http.StatusUnauthorized
			if tt.barred {
				want = http.StatusTooManyRequests
			}
			if status, answer := f.post(attackerAddr, "/agentmesh", f.message(victim.ID, meshtest.Key("mallory"), "hello")); status != want {
				t.Errorf("the attacker is answered %d %s, want %d", status, answer, want)
			}
			if out := f.command("status"); tt.status != regexp.MustCompile(sharedRow).MatchString(out) {
				t.Errorf("status says that clients share: %v, want %v:\n%s", !tt.status, tt.status, out)
			}
			if out := f.command("doctor"); !regexp.MustCompile("(?m)^" + tt.doctor).MatchString(out) {
				t.Errorf("doctor does not say %q:\n%s", tt.doctor, out)
			}
			f.serve.stop()
			if n := strings.Count(f.serve.log.String(), "the clients of some requests are unknown"); tt.status != (n == 1) {
				t.Errorf("the log says %d times that clients share, want %v", n, tt.status)
			}
		})
	}
}
