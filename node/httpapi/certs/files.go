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

	"github.com/agentmesh/agentmesh/node/wire"
)

const checkGap = 10 * time.Second // between two looks at the files

// ErrKeyMode means that every user of the machine can read the private key.
var ErrKeyMode = errors.New("every user of this machine can read the key")

// Files returns a source that reads a certificate chain and its key from PEM files, and reads them again when one of
// them has changed. If the changed files are unreadable, or do not belong together, the source logs that and keeps the
// previous certificate. Files returns an error if the files are unusable at the start or are not for host.
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
	loaded          *tls.Certificate // nil before the first fetch
	loadedStamps    [2]stamp         // of both files at the time of the read that gave loaded
}

type stamp struct {
	modified time.Time
	size     int64
}

func (f *files) fetch(context.Context) (*tls.Certificate, time.Duration, error) {
	var stamps [2]stamp
	for i, name := range []string{f.cert, f.key} {
		info, err := os.Stat(name)
		if err != nil {
			return nil, checkGap, err
		}
		stamps[i] = stamp{info.ModTime(), info.Size()}
		if name == f.key && isTooOpen(info.Mode()) {
			return nil, checkGap, fmt.Errorf("%s: %w", name, ErrKeyMode)
		}
	}
	if f.loaded != nil && stamps == f.loadedStamps {
		return f.loaded, checkGap, nil
	}
	cert, err := loadPair(f.cert, f.key)
	if err == nil {
		err = checkHost(cert.Leaf, f.host)
	}
	if err != nil {
		return nil, checkGap, fmt.Errorf("%s: %w", f.cert, err)
	}
	f.loadedStamps, f.loaded = stamps, &cert
	return f.loaded, checkGap, nil
}

// loadPair is [tls.LoadX509KeyPair] for files that may begin with a byte order mark.
func loadPair(names ...string) (tls.Certificate, error) {
	var texts [2][]byte
	for i, name := range names {
		data, err := os.ReadFile(name)
		if err == nil {
			texts[i], err = wire.FileText(data)
		}
		if err != nil {
			return tls.Certificate{}, err
		}
	}
	return tls.X509KeyPair(texts[0], texts[1])
}

func checkHost(leaf *x509.Certificate, host string) error {
	if leaf.VerifyHostname(host) == nil {
		return nil
	}
	return fmt.Errorf("the certificate is for %s, not for %s", strings.Join(leaf.DNSNames, ", "), host)
}

// isTooOpen reports whether every user can read the key. A group may read it, because some systems have a group for
// certificates.
func isTooOpen(mode fs.FileMode) bool {
	return runtime.GOOS != "windows" && mode.Perm()&0o007 != 0
}
