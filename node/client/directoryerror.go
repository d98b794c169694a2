package client

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// The kinds of a [DirectoryError], for [errors.Is].
var (
	ErrUnreachable  = errors.New("the directory cannot be reached")
	ErrRefused      = errors.New("the directory refuses")
	ErrCredential   = errors.New("the bearer token is missing, lost or wrong")
	ErrTaken        = errors.New("the agent id is taken")
	ErrReserved     = errors.New("the agent id belongs to another key")
	ErrUnknownAgent = errors.New("no such agent")
	ErrBadAnswer    = errors.New("this is not the answer of a directory")
	ErrOtherAddress = errors.New("the directory keeps no mail for this address")
)

// DirectoryError is a failed call to a directory.
type DirectoryError struct {
	Op        string // "register", "search"
	Directory string // base URL
	Kind      error  // one of the errors above

	// The answer of the directory; zero if it did not answer. Message is printable.
	Status  int
	Code    wire.Code
	Message string

	// Removed is why the operator removed the card, if that is why the directory does not know the agent: printable text of
	// the directory, in one line.
	Removed string

	// Retry is true if the same call may succeed later. It depends on the status too, because the reference directory
	// sends retry:false with every error.
	Retry      bool
	RetryAfter time.Duration

	cause error
}

func (e *DirectoryError) Error() string {
	if e.Removed != "" {
		return fmt.Sprintf("the operator of %s removed the card: %s", wire.OneLine(e.Directory, 200), e.Removed)
	}
	text := fmt.Sprintf("%s at %s: %v", e.Op, wire.OneLine(e.Directory, 200), e.Kind)
	if e.Status != 0 && e.Kind != ErrUnknownAgent {
		text += fmt.Sprintf(" (HTTP %d", e.Status)
		if e.Code != "" {
			text += fmt.Sprintf(", %s: %s", e.Code, e.Message)
		}
		text += ")"
	}
	if e.cause != nil {
		text += ": " + e.cause.Error()
	}
	return text
}

// Unwrap returns the kind and the cause.
func (e *DirectoryError) Unwrap() []error {
	if e.cause == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.cause}
}

// Final reports whether the directory refused the call and would refuse the same call again.
func (e *DirectoryError) Final() bool {
	return e.Removed != "" || e.Kind == ErrCredential || e.Kind == ErrTaken || e.Kind == ErrReserved || e.Kind == ErrRefused && !e.Retry
}

// Hint returns one line about what a person can do, or "".
func (e *DirectoryError) Hint() string {
	switch {
	case e.Removed != "":
		return "ask the operator; then join again with: agentmesh register --directory " + e.Directory
	case errors.Is(e, ErrAnswerTooLarge):
		return "ask for fewer agents per page"
	case e.Kind == ErrUnreachable && isNetworkDown(e.cause):
		return "check this machine's network and name resolution, and the host in the directory's URL"
	case e.Kind == ErrUnreachable:
		return "check the directory's URL and that it is running"
	case e.Kind == ErrCredential:
		return "only the token that registered a card can change it; if it is lost, ask the directory's operator to run agentmesh cards handover"
	case e.Kind == ErrOtherAddress:
		return "name the directory's own address in directories and via_relay"
	case e.Kind == ErrReserved:
		return "put back the key that the id was made of (from retired-keys or a backup), or start an agent with another id in a new data directory"
	case e.Kind == ErrTaken:
		return "the card belongs to another token, or was registered under another URL of this directory: use that token or URL, or ask the directory's operator to run agentmesh cards handover"
	case e.Kind == ErrBadAnswer, e.Status == http.StatusNotFound && !strings.HasSuffix(e.Directory, "/v1"):
		return "the directory's URL usually ends in /v1"
	case e.Code == wire.RateLimited:
		return "wait and try again"
	case e.Code == wire.InvalidSignature:
		return "use the URL that the directory itself uses, because the key proof contains it"
	case e.Code == wire.InvalidMessage && strings.Contains(e.Message, "endpoint must"):
		return "if nobody can connect to this machine, receive through a mailbox of the directory: --via-relay " + e.Directory + "; otherwise set public_url"
	case e.Code == wire.InvalidMessage && (e.Op == opRegister || e.Op == opRenew):
		return "change the field that the message names: the settings card and public_url of the configuration define the card"
	case e.Status == http.StatusForbidden:
		return "the directory does not take registrations from everyone: ask its operator for a link to join, and run agentmesh register LINK"
	}
	return ""
}

func isNetworkDown(err error) bool {
	_, unresolved := errors.AsType[*net.DNSError](err)
	return unresolved || errors.Is(err, syscall.ENETUNREACH) || errors.Is(err, syscall.EHOSTUNREACH)
}

// errorFor returns the error for an answer whose status the caller did not expect.
func (d *Directory) errorFor(op string, resp *http.Response, body []byte) error {
	e := &DirectoryError{Op: op, Directory: d.Base, Kind: ErrRefused, Status: resp.StatusCode}
	if v, err := wire.ParseObject(body); err == nil {
		if refusal, ok := wire.ParseError(resp.StatusCode, v); ok {
			e.Code, e.Message, e.Retry = wire.Code(wire.OneLine(string(refusal.Code), 64)), wire.OneLine(refusal.Message, 300), refusal.Retry
		}
	}
	e.Retry = e.Retry || IsRetryStatus(resp.StatusCode)
	e.RetryAfter = retryAfter(resp.Header, time.Now())
	switch {
	case resp.StatusCode == http.StatusNotFound && e.Code == wire.AgentUnavailable:
		e.Kind = ErrUnknownAgent
		_, e.Removed, _ = strings.Cut(e.Message, wire.ErrRemoved.Message+": ")
	case resp.StatusCode == http.StatusConflict && e.Message == wire.ErrIDReserved.Message:
		e.Kind = ErrReserved
	case resp.StatusCode == http.StatusConflict:
		e.Kind = ErrTaken
	case e.Code == wire.Unauthorized && (resp.StatusCode == http.StatusUnauthorized || op != opRegister):
		// A 403 to a registration refuses every client without an invite, whatever its token.
		e.Kind = ErrCredential
	case resp.StatusCode < 400 || e.Code == "":
		e.Kind = ErrBadAnswer
	}
	return e
}

// The operations that [DirectoryError.Op] names.
const (
	opRegister = "register"
	opRenew    = "renew"
	opRotate   = "rotate the key"
	opWithdraw = "withdraw"
	opCard     = "look up the card"
	opRecord   = "look up the record"
	opKeys     = "look up the keys"
	opSearch   = "search"
	opChanges  = "read the changes"
	opMail     = "take the mail"
)

func (d *Directory) unreachable(op string, cause error) error {
	return &DirectoryError{Op: op, Directory: d.Base, Kind: ErrUnreachable, Retry: true, cause: cause}
}

func (d *Directory) badAnswer(op string, status int, cause error) error {
	return &DirectoryError{Op: op, Directory: d.Base, Kind: ErrBadAnswer, Status: status, cause: cause}
}
