package certs

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/node/goldentest"
)

const host = "mesh.example.org"

// writePair writes a certificate for a name, and its key with this mode.
func writePair(t *testing.T, dir, name string, serial int64, mode os.FileMode) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), DNSNames: []string{name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	if err := os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(keyFile, mode); err != nil {
		t.Fatal(err)
	}
	return certFile, keyFile
}

func serial(t *testing.T, s *Source) int64 {
	t.Helper()
	cert, err := s.Config().GetCertificate(&tls.ClientHelloInfo{ServerName: host})
	if err != nil {
		t.Fatal(err)
	}
	return cert.Leaf.SerialNumber.Int64()
}

// TestFiles: a renewed certificate is served, a broken one is not, and the owner sees the error.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile := writePair(t, dir, host, 1, 0o600)
	s, err := Files(host, certFile, keyFile, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := serial(t, s); got != 1 || s.State().Check(time.Now()) != nil {
		t.Errorf("serial %d, %v", got, s.State())
	}
	writePair(t, dir, host, 22222222, 0o600)
	s.step(t.Context())
	if got := serial(t, s); got != 22222222 || s.State().Err != nil {
		t.Errorf("after renewal: serial %d, %v", got, s.State())
	}
	intermediate, err := os.ReadFile(certFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(certFile, append(intermediate, intermediate...), 0o600); err != nil {
		t.Fatal(err)
	}
	s.step(t.Context())
	if chain := s.current.Load().Certificate; len(chain) != 2 {
		t.Errorf("after an intermediate was added, the chain has %d certificates", len(chain))
	}
	for name, damage := range map[string]func(){
		"half a file": func() { os.WriteFile(certFile, []byte("-----BEGIN CERTIFICATE-----\n"), 0o600) },
		"another key": func() {
			other, _ := writePair(t, t.TempDir(), host, 3, 0o600)
			os.Rename(other, certFile)
		},
		"another name": func() { writePair(t, dir, "other.example.org", 4, 0o600) },
		"no file":      func() { os.Remove(keyFile) },
	} {
		damage()
		s.step(t.Context())
		if got := serial(t, s); got != 22222222 || s.State().Err == nil || s.State().Check(time.Now()) != nil {
			t.Errorf("%s: serial %d, %v", name, got, s.State())
		}
	}
	if err := s.State().Check(time.Now().Add(2 * time.Hour)); !errors.Is(err, errExpired) {
		t.Errorf("an expired certificate: %v", err)
	}
}

func TestFilesRefused(t *testing.T) {
	certFile, keyFile := writePair(t, t.TempDir(), "other.example.org", 1, 0o600)
	if _, err := Files(host, certFile, keyFile, nil); err == nil || !goldentest.Says(t, "another name", strings.ReplaceAll(err.Error(), certFile, "FILE")) {
		t.Errorf("another name: %v", err)
	}
	if runtime.GOOS != "windows" {
		certFile, keyFile = writePair(t, t.TempDir(), host, 1, 0o644)
		if _, err := Files(host, certFile, keyFile, nil); !errors.Is(err, ErrKeyMode) {
			t.Errorf("a key that everybody may read: %v", err)
		}
	}
	if _, err := Files(host, certFile, filepath.Join(t.TempDir(), "none"), nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no key: %v", err)
	}
}

// authorityDown counts calls and fails them.
type authorityDown struct{ calls atomic.Int64 }

func (a *authorityDown) RoundTrip(*http.Request) (*http.Response, error) {
	a.calls.Add(1)
	return nil, errors.New("connection refused")
}

// TestStrangersAskNothing: strangers who connect, with our name or others, with or without the protocol of a challenge,
// cause no calls to the authority, no files and no memory use (THREATS). Only time bounds the calls.
func TestStrangersAskNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := &authorityDown{}
		dir := filepath.Join(t.TempDir(), "acme")
		s := ACME(ACMEConfig{Host: host, Authority: "https://127.0.0.1/dir", Dir: dir, Plain: true, Transport: down})
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go s.Run(ctx)
		synctest.Wait()
		if n := down.calls.Load(); n != 1 {
			t.Fatalf("%d calls at the start, want 1", n)
		}
		config := s.Config()
		for i := range 20_000 {
			hello := &tls.ClientHelloInfo{ServerName: []string{host, "x" + fmt.Sprint(i) + "." + host, "", strings.ToUpper(host) + "."}[i%4]}
			if i%8 > 3 {
				hello.SupportedProtos = []string{"acme-tls/1"}
			}
			if cert, err := config.GetCertificate(hello); cert != nil || err == nil {
				t.Fatalf("%+v got a certificate", hello)
			}
			r := httptest.NewRequest(http.MethodGet, "/.well-known/acme-challenge/"+fmt.Sprint(i), nil)
			r.Host = hello.ServerName
			w := httptest.NewRecorder()
			s.Challenge().ServeHTTP(w, r)
			if w.Code < 400 || strings.Contains(w.Body.String(), dir) {
				t.Fatalf("challenge for %q: %d %s", r.Host, w.Code, w.Body)
			}
		}
		if n := down.calls.Load(); n != 1 {
			t.Errorf("strangers made %d calls to the authority", n-1)
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
			t.Errorf("on disk: %v, %v; want the account key", entries, err)
		}
		time.Sleep(time.Hour)
		if n := down.calls.Load(); n > 5 {
			t.Errorf("%d attempts in an hour, at most 5 are allowed by the largest authority", n)
		}
		time.Sleep(24 * time.Hour)
		if n := down.calls.Load(); n < 20 || n > 30 {
			t.Errorf("%d attempts in a day, want one an hour", n)
		}
		if err := s.State().Check(time.Now()); err == nil || !strings.Contains(err.Error(), "connection refused") {
			t.Errorf("the owner sees %v", err)
		}
	})
}

// TestCacheModes: an account key that others may read is not used.
func TestCacheModes(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no modes on Windows")
	}
	dir := t.TempDir()
	c := cache{cfg: ACMEConfig{Host: host, Dir: dir}, DirCache: "unused"}
	if err := os.WriteFile(filepath.Join(dir, accountKey), []byte("key"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Get(t.Context(), accountKey); err == nil || !goldentest.Says(t, "mode 644", strings.ReplaceAll(err.Error(), dir, "DIR")) {
		t.Errorf("Get() = %v", err)
	}
}
