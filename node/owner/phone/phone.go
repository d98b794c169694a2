// Package phone lets the owner open the page at the public address of the node, with a passkey (WebAuthn level 3).
//
// A code that only the machine prints sets up a phone. Afterwards the phone signs in with its passkey, and confirms every
// form with it again, with user verification: a fingerprint, a face or a PIN. Only the machine adds and forgets phones, so
// whoever has a phone of the owner cannot keep it. Sessions are in memory: after a restart a phone signs in again.
package phone

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"embed"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-webauthn/webauthn/protocol"
	"github.com/go-webauthn/webauthn/webauthn"
	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

//go:embed page/*.html
var pageFiles embed.FS

const (
	nsPasskeys   = "passkeys" // namespace of the stored passkeys, by the hex hash of the credential's id
	maxPasskeys  = 16
	maxBody      = 64 << 10
	codeLife     = 10 * time.Minute
	ceremonyLife = 5 * time.Minute
	confirmed    = time.Minute // how long a confirmation waits for its form
	sessionLife  = 24 * time.Hour
	maxSessions  = 64 // starting another one ends the oldest
	maxWrong     = 10 // wrong codes and passkeys per client address and minute
	wrongPause   = 10 * time.Minute
	maxClients   = 1 << 12
	cookieName   = "__Host-agentmesh-phone"
)

// Config configures [Mount]. All fields but Logger are required.
type Config struct {
	Records store.Records
	// URL is the public address of the node. Its host is the id of the relying party.
	URL string
	// Name returns the name of the agent.
	Name   func() string
	Logger *slog.Logger // nil discards
}

// Gate admits requests for the owner's page that came to the public address. It implements [httpapi.PhoneGate] and is safe
// for concurrent use.
type Gate struct {
	cfg   Config
	auth  *webauthn.WebAuthn
	pages *httpapi.Pages
	page  *httpapi.PageTemplate
	wrong *rate.Penalties
	key   []byte // seals ceremonies, so that a stranger who begins many of them costs no memory

	mu       sync.Mutex
	code     [sha256.Size]byte // hash of the code that sets up a phone
	codeEnd  time.Time         // zero: there is no code
	done     map[string]time.Time
	sessions []*session // oldest first
}

// session is a phone that has signed in.
type session struct {
	hash       [sha256.Size]byte // of the cookie
	credential string            // key of its passkey's record
	until      time.Time
	confirmed  time.Time // until when the next form is confirmed; zero: it is not
}

// Setup is an address that sets up a phone, once.
type Setup struct {
	// URL has a code after "#", which reaches no server and no log.
	URL     string    `json:"url"`
	Expires time.Time `json:"expires_at"`
	// Phones is how many phones are set up.
	Phones int `json:"phones"`
}

// Mount adds the page on which a phone signs in to the owner's listener, and the owner's page, behind the gate that it
// returns, to the router of the public address.
func Mount(listener *httpapi.Owner, public *echo.Echo, cfg Config) (*Gate, error) {
	u, err := url.Parse(cfg.URL)
	if err != nil {
		return nil, fmt.Errorf("phone: public address: %w", err)
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	cfg.URL = u.Scheme + "://" + u.Host
	g := &Gate{
		cfg: cfg, pages: listener.Pages(), key: make([]byte, sha256.Size), done: make(map[string]time.Time),
		wrong: rate.NewPenalties(maxWrong, wrongPause, maxClients),
	}
	rand.Read(g.key) // never fails
	g.auth, err = webauthn.New(&webauthn.Config{
		RPID: u.Hostname(), RPDisplayName: "agentmesh", RPOrigins: []string{cfg.URL},
		AuthenticatorSelection: protocol.AuthenticatorSelection{
			ResidentKey: protocol.ResidentKeyRequirementRequired, UserVerification: protocol.VerificationRequired,
		},
		AttestationPreference: protocol.PreferNoAttestation,
	})
	if err != nil {
		return nil, fmt.Errorf("phone: %w", err)
	}
	g.page = g.pages.Template(pageFiles, nil, "page/phone.html")
	group := g.pages.Group()
	group.GET("/phone", g.show)
	group.POST("/phone/begin", g.begin)
	group.POST("/phone/finish", g.finish)
	group.POST("/phone/out", g.signOut)
	listener.MountPhone(public, u.Hostname(), g)
	return g, nil
}

// NewSetup makes a code that sets up a phone. The previous code becomes invalid.
func (g *Gate) NewSetup(ctx context.Context, now time.Time) (Setup, error) {
	known, err := g.passkeys(ctx, now)
	if err != nil {
		return Setup{}, err
	}
	code := rand.Text()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.code, g.codeEnd = sha256.Sum256([]byte(code)), now.Add(codeLife)
	return Setup{g.cfg.URL + httpapi.PhonePath + "#" + code, g.codeEnd.UTC(), len(known)}, nil
}

// Forget removes all passkeys and ends all sessions.
func (g *Gate) Forget(ctx context.Context, now time.Time) error {
	var all []store.Change
	for rec, err := range store.AllRecords(ctx, g.cfg.Records, nsPasskeys, "", now) {
		if err != nil {
			return err
		}
		all = append(all, store.Change{Record: rec, IfRev: store.Any, Delete: true})
	}
	if len(all) > 0 {
		if err := g.cfg.Records.Apply(ctx, all, now); err != nil {
			return err
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sessions, g.codeEnd = nil, time.Time{}
	return nil
}

var (
	errNotSignedIn = wire.ErrNoBearer.Because(errors.New("no phone session"))
	errConfirm     = &wire.Error{Code: wire.Unauthorized, Status: http.StatusForbidden, Message: "confirm it with your passkey, and send the form again"}
	errWrong       = &wire.Error{Code: wire.Unauthorized, Status: http.StatusForbidden, Message: "this passkey or this code is not known here, or came too late"}
	errManyPhones  = &wire.Error{Code: wire.RateLimited, Status: http.StatusConflict, Message: "too many phones are set up; forget them on the machine first"}
)

// Admit implements [httpapi.PhoneGate]. Without a session it lets a request reach only the sign-in. A form must be confirmed.
func (g *Gate) Admit(c echo.Context) (done bool, err error) {
	r, path := c.Request(), echo.GetPath(c.Request())
	if path == httpapi.PhonePath || strings.HasPrefix(path, httpapi.PhonePath+"/") || httpapi.IsPageAsset(path) {
		return false, nil
	}
	s, err := g.find(r, time.Now())
	switch {
	case err != nil:
		return false, err
	case s == nil && r.Method == http.MethodGet && path != httpapi.PagePath+"/events":
		return true, c.Redirect(http.StatusSeeOther, httpapi.PhonePath)
	case s == nil:
		return false, errNotSignedIn
	case r.Method != http.MethodGet && r.Method != http.MethodHead && !g.take(s, time.Now()):
		return false, errConfirm
	}
	return false, nil
}

// take uses up the confirmation of a session.
func (g *Gate) take(s *session, now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	isConfirmed := now.Before(s.confirmed)
	s.confirmed = time.Time{}
	return isConfirmed
}

// find returns the session of a request, whose passkey still exists, or nil.
func (g *Gate) find(r *http.Request, now time.Time) (*session, error) {
	cookie, err := r.Cookie(cookieName)
	if err != nil {
		return nil, nil //nolint:nilerr // there is no cookie
	}
	hash := sha256.Sum256([]byte(cookie.Value))
	g.mu.Lock()
	var found *session
	for _, s := range g.sessions {
		if subtle.ConstantTimeCompare(s.hash[:], hash[:]) == 1 && now.Before(s.until) {
			found = s
		}
	}
	g.mu.Unlock()
	if found == nil {
		return nil, nil
	}
	_, err = g.cfg.Records.Get(r.Context(), nsPasskeys, found.credential, now) // another process may have forgotten it
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	return found, err
}

// user is the owner as the library knows one.
type user struct {
	name  string
	creds []webauthn.Credential
}

func (user) WebAuthnID() []byte                           { return []byte("owner") }
func (u user) WebAuthnName() string                       { return u.name }
func (u user) WebAuthnDisplayName() string                { return u.name }
func (u user) WebAuthnCredentials() []webauthn.Credential { return u.creds }

func (g *Gate) passkeys(ctx context.Context, now time.Time) (list []webauthn.Credential, err error) {
	for cred, err := range store.DecodeAll(ctx, g.cfg.Records, nsPasskeys, "", now, store.Decode[webauthn.Credential]) {
		if err != nil {
			return nil, err
		}
		list = append(list, cred)
	}
	return list, nil
}

func keyOf(id []byte) string {
	sum := sha256.Sum256(id)
	return hex.EncodeToString(sum[:])
}

// ceremony is what a phone returns with its answer, sealed with our key.
type ceremony struct {
	webauthn.SessionData
	Setup bool `json:"setup"`
}

func (g *Gate) seal(c ceremony) string {
	data := wire.MustMarshal(c)
	mac := hmac.New(sha256.New, g.key)
	mac.Write(data)
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil)) + "." + base64.RawURLEncoding.EncodeToString(data)
}

func (g *Gate) unseal(s string) (c ceremony, ok bool) {
	sum, data, _ := strings.Cut(s, ".")
	want, err := base64.RawURLEncoding.DecodeString(sum)
	body, err2 := base64.RawURLEncoding.DecodeString(data)
	mac := hmac.New(sha256.New, g.key)
	mac.Write(body)
	if err != nil || err2 != nil || !hmac.Equal(mac.Sum(nil), want) || json.Unmarshal(body, &c) != nil {
		return c, false
	}
	return c, time.Now().Before(c.Expires)
}

func (g *Gate) show(c echo.Context) error {
	return g.pages.Render(c, g.page, httpapi.View{Title: "Your agent"})
}

// read decodes a JSON body after it has checked that the client need not wait.
func (g *Gate) read(c echo.Context, into any) error {
	if wait := g.wrong.Admit(httpapi.PhoneClient(c.Request()), time.Now()); wait > 0 {
		return wire.ErrRateLimited.After(wait)
	}
	body, err := io.ReadAll(http.MaxBytesReader(c.Response().Writer, c.Request().Body, maxBody))
	if err != nil {
		return wire.ErrTooLarge
	}
	if json.Unmarshal(body, into) != nil {
		return wire.ErrSyntax
	}
	return nil
}

// refuse counts a wrong code or passkey.
func (g *Gate) refuse(c echo.Context, reason error) error {
	g.wrong.Fault(httpapi.PhoneClient(c.Request()), time.Now())
	return errWrong.Because(reason)
}

// begin answers with the options of a ceremony: for a body with a valid code one that sets up a passkey, otherwise one that
// uses a passkey.
func (g *Gate) begin(c echo.Context) error {
	var in struct{ Code string }
	if err := g.read(c, &in); err != nil {
		return err
	}
	var options any
	var data *webauthn.SessionData
	var err error
	if in.Code == "" {
		options, data, err = g.auth.BeginDiscoverableLogin(webauthn.WithUserVerification(protocol.VerificationRequired))
	} else {
		if !g.isCode(in.Code) {
			return g.refuse(c, errors.New("wrong code"))
		}
		known, readErr := g.passkeys(c.Request().Context(), time.Now())
		if readErr != nil {
			return readErr
		}
		options, data, err = g.auth.BeginRegistration(user{g.cfg.Name(), known})
	}
	if err != nil {
		return fmt.Errorf("begin a ceremony: %w", err)
	}
	data.Expires = time.Now().Add(ceremonyLife)
	return httpapi.JSON(c, http.StatusOK, map[string]any{"options": options, "state": g.seal(ceremony{*data, in.Code != ""})})
}

func (g *Gate) isCode(code string) bool {
	hash := sha256.Sum256([]byte(code))
	g.mu.Lock()
	defer g.mu.Unlock()
	return time.Now().Before(g.codeEnd) && subtle.ConstantTimeCompare(hash[:], g.code[:]) == 1
}

// finish takes the answer of a phone. It begins a session, or confirms the next form of the session that exists.
func (g *Gate) finish(c echo.Context) error {
	var in struct {
		State, Code string
		Response    json.RawMessage
	}
	if err := g.read(c, &in); err != nil {
		return err
	}
	state, ok := g.unseal(in.State)
	if !ok || state.Setup && !g.isCode(in.Code) {
		return g.refuse(c, errors.New("not a ceremony of this process, or too late"))
	}
	now := time.Now()
	known, err := g.passkeys(c.Request().Context(), now)
	switch {
	case err != nil:
		return err
	case state.Setup && len(known) >= maxPasskeys:
		return errManyPhones
	}
	cred, err := g.check(user{g.cfg.Name(), known}, state, in.Response)
	if err != nil {
		return g.refuse(c, err)
	}
	if !g.spend(state, now) {
		return g.refuse(c, errors.New("a ceremony was repeated"))
	}
	if err := g.keep(c.Request().Context(), cred, state.Setup, now); err != nil {
		return err
	}
	s, err := g.find(c.Request(), now)
	if err != nil {
		return err
	}
	if s == nil || s.credential != keyOf(cred.ID) {
		g.open(c, keyOf(cred.ID), now)
	} else {
		g.mu.Lock()
		s.confirmed = now.Add(confirmed)
		g.mu.Unlock()
	}
	return c.NoContent(http.StatusNoContent)
}

// check verifies the answer of a phone, and returns its passkey with the new counter.
func (g *Gate) check(owner user, state ceremony, response []byte) (*webauthn.Credential, error) {
	if state.Setup {
		parsed, err := protocol.ParseCredentialCreationResponseBytes(response)
		if err != nil {
			return nil, err
		}
		return g.auth.CreateCredential(owner, state.SessionData, parsed)
	}
	parsed, err := protocol.ParseCredentialRequestResponseBytes(response)
	if err != nil {
		return nil, err
	}
	cred, err := g.auth.ValidateDiscoverableLogin(func([]byte, []byte) (webauthn.User, error) { return owner, nil }, state.SessionData, parsed)
	if err == nil && cred.Authenticator.CloneWarning {
		return nil, errors.New("the counter of the passkey went back: there may be a copy of it")
	}
	return cred, err
}

// spend reports whether a ceremony was not used before. For a setup it uses up the code. Only somebody with a passkey or a
// code gets here, so nobody else can make the list grow.
func (g *Gate) spend(state ceremony, now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for challenge, until := range g.done {
		if now.After(until) {
			delete(g.done, challenge)
		}
	}
	if _, isUsed := g.done[state.Challenge]; isUsed || state.Setup && g.codeEnd.IsZero() {
		return false
	}
	g.done[state.Challenge] = state.Expires
	if state.Setup {
		g.codeEnd = time.Time{}
	}
	return true
}

// keep stores a passkey. One that was forgotten meanwhile stays forgotten.
func (g *Gate) keep(ctx context.Context, cred *webauthn.Credential, isNew bool, now time.Time) error {
	body, err := json.Marshal(cred)
	if err != nil {
		return fmt.Errorf("encode passkey: %w", err)
	}
	change := store.Change{Record: store.Record{NS: nsPasskeys, Key: keyOf(cred.ID), Body: body}, Max: maxPasskeys}
	if !isNew {
		rec, err := g.cfg.Records.Get(ctx, nsPasskeys, change.Record.Key, now)
		if errors.Is(err, store.ErrNotFound) {
			return errWrong
		}
		if err != nil {
			return err
		}
		change.IfRev = rec.Rev
	}
	return g.cfg.Records.Apply(ctx, []store.Change{change}, now)
}

// open begins a session. Its cookie is bound to this host and to https.
func (g *Gate) open(c echo.Context, credential string, now time.Time) {
	value := rand.Text()
	g.mu.Lock()
	if len(g.sessions) >= maxSessions {
		g.sessions = g.sessions[1:]
	}
	g.sessions = append(g.sessions, &session{hash: sha256.Sum256([]byte(value)), credential: credential, until: now.Add(sessionLife)})
	g.mu.Unlock()
	g.setCookie(c, value, now.Add(sessionLife))
	g.cfg.Logger.Info("a phone signed in", "passkey", credential[:12])
}

func (g *Gate) setCookie(c echo.Context, value string, until time.Time) {
	c.SetCookie(&http.Cookie{
		Name: cookieName, Value: value, Path: "/", Expires: until, Secure: true, HttpOnly: true, SameSite: http.SameSiteStrictMode,
	})
}

func (g *Gate) signOut(c echo.Context) error {
	s, err := g.find(c.Request(), time.Now())
	if err != nil {
		return err
	}
	g.mu.Lock()
	g.sessions = slices.DeleteFunc(g.sessions, func(other *session) bool { return other == s })
	g.mu.Unlock()
	g.setCookie(c, "", time.Unix(1, 0))
	return c.Redirect(http.StatusSeeOther, httpapi.PhonePath)
}
