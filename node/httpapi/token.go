package httpapi

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/agentmesh/agentmesh/node/wire"
)

// TokenFile is the file in the data directory that holds the token of the owner's TCP listener.
const TokenFile = "owner.token"

// tokenHash is the hash of a token. The token itself is not kept in memory.
type tokenHash [sha256.Size]byte

func (h tokenHash) matches(token string) bool {
	sum := sha256.Sum256([]byte(token))
	return subtle.ConstantTimeCompare(sum[:], h[:]) == 1
}

// loadToken reads or makes the owner's token of the data directory. A file that others can read is an error.
func loadToken(dir string) (tokenHash, error) {
	return readToken(filepath.Join(dir, TokenFile), 0o077, 0o600)
}

// readToken reads a token from a file, or makes the file with the permissions in mode. It returns an error if the
// file has a permission in forbidden.
func readToken(path string, forbidden, mode fs.FileMode) (tokenHash, error) {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		token := rand.Text()
		file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
		if err != nil {
			return tokenHash{}, fmt.Errorf("make token: %w", err)
		}
		_, err = file.WriteString(token + "\n")
		err = errors.Join(err, file.Chmod(mode)) // the umask may have removed the group's permissions
		if err := errors.Join(err, file.Close()); err != nil {
			return tokenHash{}, fmt.Errorf("make token: %w", err)
		}
		return sha256.Sum256([]byte(token)), nil
	}
	if err != nil {
		return tokenHash{}, fmt.Errorf("read token: %w", err)
	}
	if !info.Mode().IsRegular() || runtime.GOOS != "windows" && info.Mode().Perm()&forbidden != 0 {
		return tokenHash{}, fmt.Errorf("token %s: must be a regular file that others cannot open (chmod %o)", path, mode)
	}
	data, err := os.ReadFile(path)
	if err == nil {
		data, err = wire.FileText(data)
	}
	if err != nil {
		return tokenHash{}, fmt.Errorf("read token: %w", err)
	}
	token := strings.TrimSpace(string(data))
	if len(token) < 16 {
		return tokenHash{}, fmt.Errorf("token %s: is too short; delete it to get a new one", path)
	}
	return sha256.Sum256([]byte(token)), nil
}

// Bearer returns the bearer token of a request, if it has one.
func Bearer(r *http.Request) (token string, ok bool) {
	scheme, token, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") {
		return "", false
	}
	token = strings.TrimSpace(token)
	return token, token != ""
}
