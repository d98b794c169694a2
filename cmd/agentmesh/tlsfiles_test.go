//go:build slow

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestTLSFiles: serve uses the owner's certificate and reads it again when it changes. doctor reports its state from
// inside and outside.
func TestTLSFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	certFile, keyFile, port := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), freePort(t)
	writeCertificate(t, certFile, keyFile, 90*24*time.Hour, "127.0.0.1")
	s := &tlsServe{t: t, data: filepath.Join(dir, "data"), secure: "127.0.0.1:" + port}
	flags := []string{
		"--set", "public_url=https://" + s.secure, "--set", "tls.cert_file=" + certFile, "--set", "tls.key_file=" + keyFile,
		"--set", "network.allow_private=127.0.0.0/8",
	}
	s.run(append(flags, "--listen", s.secure))
	doctor := func(trust string) string {
		t.Helper()
		cmd := agentmeshAt(s.data, append([]string{"doctor"}, flags...)...)
		cmd.Env = append(os.Environ(), "SSL_CERT_FILE="+trust)
		out, err := cmd.Output()
		if (err != nil) != strings.Contains(string(out), "\nfail ") {
			t.Errorf("doctor: %v\n%s", err, out)
		}
		return string(out)
	}
	expect := func(out string, lines ...string) {
		t.Helper()
		for _, want := range lines {
			if !regexp.MustCompile("(?m)^" + want).MatchString(out) {
				t.Errorf("the output of doctor lacks %q:\n%s", want, out)
			}
		}
	}
	expect(doctor(certFile), `ok +TLS +the process has a certificate, valid until `, `ok +name +127.0.0.1 is at 127.0.0.1`, `ok +certificate +valid until .*, TLS 1.3`, `ok +endpoint +https:`)

	writeCertificate(t, certFile, keyFile, 5*24*time.Hour, "127.0.0.1")
	end := readCertificate(t, s.data).NotAfter
	waitFor(t, "the new certificate", func() bool { return readCertificate(t, s.data).NotAfter.Before(end) })
	expect(doctor(certFile), `warn +certificate +valid for 4 more days`, `ok +endpoint`)

	trusted := filepath.Join(dir, "trusted.pem")
	good, err := os.ReadFile(certFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(trusted, good, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(certFile, []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the fault", func() bool { return readCertificate(t, s.data).Error != "" })
	expect(doctor(trusted), `warn +TLS +the certificate, valid until .*, cannot be replaced: `, `ok +endpoint`)
	other, otherKey := filepath.Join(dir, "other.pem"), filepath.Join(dir, "other.key")
	writeCertificate(t, other, otherKey, time.Hour, "127.0.0.1")
	expect(doctor(other), `fail +certificate +`, ` +do: get a certificate for the name from a public authority`)
	s.stop()
	expect(doctor(trusted), `warn +serve +no agentmesh serve runs`, `fail +certificate +.*refused`, ` +do: is a process listening there`)
}

// TestTLSWebSocket: WebSocket connections also work if serve itself ends TLS.
func TestTLSWebSocket(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	writeCertificate(t, certFile, keyFile, time.Hour, "127.0.0.1")
	relay := &tlsServe{t: t, data: filepath.Join(dir, "relay"), secure: "127.0.0.1:" + freePort(t)}
	relay.run([]string{
		"--public-url", "https://" + relay.secure, "--tls-cert", certFile, "--tls-key", keyFile, "--listen", relay.secure,
		"--set", "agentrelay.serve=on", "--set", "network.allow_private=127.0.0.0/8",
	})
	token, err := agentmeshAt(relay.data, "agentrelay", "token", "chris").Output()
	if err != nil {
		t.Fatal(err)
	}
	tokenFile := filepath.Join(dir, "token")
	if err := os.WriteFile(tokenFile, token, 0o600); err != nil {
		t.Fatal(err)
	}
	peer := &tlsServe{t: t, data: filepath.Join(dir, "peer")}
	link := fmt.Sprintf(`links=[{"name": "free", "kind": "agentrelay", "url": "wss://%s/arc", "agent_id": "chris", "token_file": %q}]`, relay.secure, tokenFile)
	peer.run([]string{"--roles", "node", "--set", link}, "SSL_CERT_FILE="+certFile)
	waitFor(t, "the link", func() bool {
		out, err := agentmeshAt(peer.data, "links", "list").Output()
		return err == nil && regexp.MustCompile(`(?m)^free +agentrelay +up`).Match(out)
	})
}
