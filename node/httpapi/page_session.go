package httpapi

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/atomicfile"
	"github.com/agentmesh/agentmesh/node/wire"
)

// SessionsFile is the file in the data directory that holds the hashes of the owner's browser sessions, so that a
// browser stays signed in when the process restarts. Removing or replacing owner.token ends the sessions.
const SessionsFile = "owner.sessions"

const (
	sessionLife = 7 * 24 * time.Hour
	maxSessions = 32 // starting another one ends the oldest
	codeLife    = 5 * time.Minute
	keepExpired = 24 * time.Hour // how long an expired session stays stored, because the clock may be wrong
)

// sessions holds the sessions of signed-in browsers. It keeps only SHA-256 hashes of sessions and sign-in codes.
type sessions struct {
	path string

	mu    sync.Mutex
	token tokenHash // the sessions are valid only with this token
	list  []session // oldest first
	code  signInCode
}

type session struct {
	Hash  string    `json:"hash"` // hex
	Until time.Time `json:"until"`
}

// signInCode signs one browser in, once. Wrong guesses do not invalidate it; otherwise anybody on this machine could
// keep the owner out. Its 50 bits cannot be guessed in five minutes, even at a million guesses per second.
type signInCode struct {
	hash  tokenHash
	until time.Time // zero for no code
}

type sessionFile struct {
	Token    string    `json:"token"` // hex SHA-256 of the hash of the token
	Sessions []session `json:"sessions"`
}

func newSessions(dir string) *sessions { return &sessions{path: filepath.Join(dir, SessionsFile)} }

// fingerprint returns a text that distinguishes the session files of different tokens, and the cookies of different
// nodes on one machine: browsers send cookies to all ports of a host.
func (h tokenHash) fingerprint() string {
	sum := sha256.Sum256(h[:])
	return hex.EncodeToString(sum[:])
}

// load reads the sessions that were started with this token.
func (s *sessions) load(token tokenHash) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.token, s.list = token, nil
	data, err := os.ReadFile(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read sessions: %w", err)
	}
	var file sessionFile
	if json.Unmarshal(data, &file) != nil || file.Token != token.fingerprint() {
		return nil // every browser must sign in again
	}
	s.list = file.Sessions[max(0, len(file.Sessions)-maxSessions):]
	return nil
}

// cookieName returns the name of the cookie that holds a session.
func (s *sessions) cookieName() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return "agentmesh-" + s.token.fingerprint()[:12]
}

// begin starts a session and returns the value of its cookie.
func (s *sessions) begin(now time.Time) (value string, until time.Time, err error) {
	value, until = rand.Text(), now.Add(sessionLife)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = slices.DeleteFunc(s.list, func(e session) bool { return !now.Before(e.Until.Add(keepExpired)) })
	if excess := len(s.list) + 1 - maxSessions; excess > 0 {
		s.list = slices.Delete(s.list, 0, excess)
	}
	s.list = append(s.list, session{Hash: hashOf(value), Until: until.UTC()})
	return value, until, s.save()
}

// end ends the session whose cookie has this value, or all sessions.
func (s *sessions) end(value string, all bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	hash := hashOf(value)
	s.list = slices.DeleteFunc(s.list, func(e session) bool { return all || e.Hash == hash })
	return s.save()
}

// save writes the whole file. The caller holds mu.
func (s *sessions) save() error {
	if err := atomicfile.Write(s.path, wire.MustMarshal(sessionFile{Token: s.token.fingerprint(), Sessions: s.list})); err != nil {
		return fmt.Errorf("store sessions: %w", err)
	}
	return nil
}

// find returns the value of the session cookie in a request, or "" if no stored session has that value. ok reports
// whether the session is valid now.
func (s *sessions) find(r *http.Request) (value string, ok bool) {
	c, err := r.Cookie(s.cookieName())
	if err != nil || c.Value == "" {
		return "", false
	}
	now, hash := time.Now(), hashOf(c.Value)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.list {
		if subtle.ConstantTimeCompare([]byte(e.Hash), []byte(hash)) == 1 {
			return c.Value, now.Before(e.Until)
		}
	}
	return "", false
}

// newCode makes a sign-in code, which replaces the previous one.
func (s *sessions) newCode(now time.Time) (code string, until time.Time) {
	text := rand.Text()[:10] // 50 bits
	s.mu.Lock()
	defer s.mu.Unlock()
	s.code = signInCode{hash: sha256.Sum256([]byte(text)), until: now.Add(codeLife)}
	return text[:5] + "-" + text[5:], s.code.until
}

// redeem reports whether typed is the token or the sign-in code. It uses up a code that matches.
func (s *sessions) redeem(typed string, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.token != (tokenHash{}) && s.token.matches(typed) {
		return true
	}
	if s.code.until.IsZero() {
		return false
	}
	plain := strings.ToUpper(strings.Map(func(r rune) rune {
		if r == '-' || r == ' ' {
			return -1
		}
		return r
	}, typed))
	isValid := s.code.hash.matches(plain) && now.Before(s.code.until)
	if isValid {
		s.code = signInCode{}
	}
	return isValid
}

func hashOf(value string) string {
	sum := sha256.Sum256([]byte(value))
	return hex.EncodeToString(sum[:])
}
