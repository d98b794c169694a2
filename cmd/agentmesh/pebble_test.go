//go:build slow

package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
)

// pebble is Let's Encrypt's test authority. It validates every name at 127.0.0.1, on the ports of the test's node.
type pebble struct {
	directory string // URL
	root      string // file with the certificate of its own HTTPS server
	httpPort  string // port for HTTP-01
	tlsPort   string // port for TLS-ALPN-01
	manage    string
	config    string        // file
	settings  func() string // content of that file
	dns       string
	log       *lockedBuffer
}

// newPebble configures a pebble that issues certificates with the given validity. Its method start runs the process.
func newPebble(t *testing.T, validity time.Duration) *pebble {
	t.Helper()
	if _, err := exec.LookPath("pebble"); err != nil {
		if os.Getenv("AGENTMESH_TOOLS") == "required" {
			t.Fatal("pebble is not installed (AGENTMESH_TOOLS=required)")
		}
		t.Skip("pebble is not installed")
	}
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	writeCertificate(t, certFile, keyFile, time.Hour, "127.0.0.1")
	p := &pebble{
		root: certFile, httpPort: freePort(t), tlsPort: freePort(t), manage: "127.0.0.1:" + freePort(t),
		config: filepath.Join(dir, "pebble.json"), dns: serveDNS(t, "127.0.0.1:0", [4]byte{127, 0, 0, 1}), log: &lockedBuffer{},
	}
	listen := "127.0.0.1:" + freePort(t)
	p.directory = "https://" + listen + "/dir"
	p.settings = func() string {
		return fmt.Sprintf(`{"pebble": {"listenAddress": %q, "managementListenAddress": %q, "certificate": %q, "privateKey": %q,
			"httpPort": %s, "tlsPort": %s, "keyAlgorithm": "ecdsa", "retryAfter": {"authz": 1, "order": 1},
			"profiles": {"default": {"description": "default", "validityPeriod": %d}}}}`,
			listen, p.manage, certFile, keyFile, p.httpPort, p.tlsPort, int(validity.Seconds()))
	}
	return p
}

func (p *pebble) start(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(p.config, []byte(p.settings()), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("pebble", "-strict", "-config", p.config, "-dnsserver", p.dns)
	cmd.Env = append(os.Environ(), "PEBBLE_VA_NOSLEEP=1")
	cmd.Stdout, cmd.Stderr = p.log, p.log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Logf("pebble: %s", p.log.String())
		}
	})
	waitFor(t, "pebble to answer", func() bool {
		conn, err := net.Dial("tcp", p.manage)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
}

// roots returns the root certificates of the certificates that pebble issues.
func (p *pebble) roots(t *testing.T) *x509.CertPool {
	t.Helper()
	roots := x509.NewCertPool()
	if data := p.rootFile(t); !roots.AppendCertsFromPEM(data) {
		t.Fatalf("pebble's root: %q", data)
	}
	return roots
}

func (p *pebble) rootFile(t *testing.T) []byte {
	t.Helper()
	own, err := os.ReadFile(p.root)
	if err != nil {
		t.Fatal(err)
	}
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(own)
	c := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted}, DisableKeepAlives: true}}
	resp, err := c.Get("https://" + p.manage + "/roots/0")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// orders returns the number of objects that pebble has stored for its clients.
func (p *pebble) orders() int { return strings.Count(p.log.String(), "to the db") }

func freePort(t *testing.T) string {
	t.Helper()
	_, port, _ := net.SplitHostPort(freeAddress(t))
	return port
}

// writeCertificate writes a self-signed certificate for names and addresses, and its key.
func writeCertificate(t *testing.T, certFile, keyFile string, life time.Duration, names ...string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: names[0]}, NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(life),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: der}, keyFile: {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// serveDNS runs a DNS server over TCP. Every name has the IPv4 address host and no other records.
func serveDNS(t *testing.T, listen string, host [4]byte) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", listen)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	t.Cleanup(func() { l.Close(); all.Wait() })
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer conn.Close()
				conn.SetDeadline(time.Now().Add(10 * time.Second))
				for answerDNS(conn, host) {
				}
			})
		}
	})
	return l.Addr().String()
}

// answerDNS answers one query, and reports whether that worked.
func answerDNS(conn net.Conn, host [4]byte) bool {
	var size [2]byte
	if _, err := io.ReadFull(conn, size[:]); err != nil {
		return false
	}
	query := make([]byte, binary.BigEndian.Uint16(size[:]))
	if _, err := io.ReadFull(conn, query); err != nil {
		return false
	}
	var m dnsmessage.Message
	if m.Unpack(query) != nil || len(m.Questions) != 1 {
		return false
	}
	m.Response, m.Additionals = true, nil
	if q := m.Questions[0]; q.Type == dnsmessage.TypeA {
		m.Answers = []dnsmessage.Resource{{
			Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 1}, Body: &dnsmessage.AResource{A: host},
		}}
	}
	answer, err := m.Pack()
	if err != nil {
		return false
	}
	_, err = conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...))
	return err == nil
}

func readCertificate(t *testing.T, data string) daemon.Certificate {
	t.Helper()
	o := daemon.Running(t.Context(), data)
	if o == nil {
		t.Fatal("no serve runs")
	}
	defer o.Close()
	raw, err := o.Call(t.Context(), http.MethodGet, "certificate", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	var c daemon.Certificate
	if err := json.Unmarshal(raw, &c); err != nil {
		t.Fatal(err)
	}
	return c
}
