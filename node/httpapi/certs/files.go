package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"time"
)

// lookEvery is how often the files are looked at.
const lookEvery = 10 * time.Second

// ErrKeyMode: everybody on the machine may read the private key.
var ErrKeyMode = errors.New("the key may be read by everybody")

// Files is a source that reads a certificate chain and its key from PEM files, and reads them again when one of them
// has changed. What cannot be read then, or does not belong together, is logged, and the certificate before it
// stays. Files that cannot be used at the start, or are for other names than host, are an error.
func Files(host, certFile, keyFile string, log *slog.Logger) (*Source, error) {
	f := &files{host: host, cert: certFile, key: keyFile}
	loaded, _, err := f.fetch(context.Background())
	if err != nil {
		return nil, err
	}
	s := newSource(log)
	s.fetch = f.fetch
	s.current.Store(loaded)
	return s, nil
}

type files struct {
	host, cert, key string
	seen            [2]stamp
	loaded          *tls.Certificate
}

// stamp is what changes when a file is written or replaced.
type stamp struct {
	modified time.Time
	size     int64
}

func (f *files) fetch(context.Context) (*tls.Certificate, time.Duration, error) {
	var now [2]stamp
	for i, name := range []string{f.cert, f.key} {
		info, err := os.Stat(name)
		if err != nil {
			return nil, lookEvery, err
		}
		now[i] = stamp{info.ModTime(), info.Size()}
		if name == f.key && tooOpen(info.Mode()) {
			return nil, lookEvery, fmt.Errorf("%s: %w", name, ErrKeyMode)
		}
	}
	if f.loaded != nil && now == f.seen {
		return f.loaded, lookEvery, nil
	}
	cert, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err == nil {
		err = isFor(cert.Leaf, f.host)
	}
	if err != nil {
		return nil, lookEvery, fmt.Errorf("%s: %w", f.cert, err)
	}
	f.seen, f.loaded = now, &cert
	return f.loaded, lookEvery, nil
}

// isFor is the error of a certificate that peers would not take for host.
func isFor(leaf *x509.Certificate, host string) error {
	if leaf.VerifyHostname(host) == nil {
		return nil
	}
	return fmt.Errorf("the certificate is for %s, not for %s", strings.Join(leaf.DNSNames, ", "), host)
}

// tooOpen: a group may read it, as distributions have groups for certificates.
func tooOpen(mode fs.FileMode) bool {
	return runtime.GOOS != "windows" && mode.Perm()&0o007 != 0
}
