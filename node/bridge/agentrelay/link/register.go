package link

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"

	"github.com/agentmesh/agentmesh/node/atomicfile"
	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
)

var (
	errTooMany = errors.New("the relay limits registrations")
	errIDTaken = errors.New("the id is taken at the relay; configure another agent_id, or the token of this id")
	errNotOpen = errors.New("the relay does not register agents; ask its owner for a token")
)

// needsOwner reports whether a link that failed with err stays down until its owner acts.
func needsOwner(err error) bool {
	return errors.Is(err, errToken) || errors.Is(err, errIDTaken) || errors.Is(err, errNotOpen)
}

// registerAgain registers the link again, under the same id, after the relay refused the token: a relay that
// restarted may have forgotten the link (AR-52). It returns errToken if the owner configured the token or disabled
// new registrations, if the relay is in this process, or if the relay has already refused a new token: otherwise the
// link could register forever.
func (l *Link) registerAgain(ctx context.Context) error {
	if l.cfg.Token != "" || l.cfg.Join != nil || l.cfg.Link.Options[optReregister] == "false" || l.renewed {
		return errToken
	}
	done, err := l.keeper.Dial(ctx)
	if err != nil {
		return err
	}
	defer done()
	_, err = l.register(ctx)
	l.renewed = err == nil
	return err
}

// maxCredentials bounds the answer to a registration, in bytes.
const maxCredentials = 64 << 10

func (l *Link) tokenFile() string {
	return filepath.Join(l.cfg.Dir, "agentrelay-"+l.cfg.Link.Name+".json")
}

// token returns the token that the owner configured, a new one from the relay that runs in this process, or the
// stored one of an earlier registration. If it finds no token, it registers the link (AR-51).
func (l *Link) token(ctx context.Context) (client.Credential, error) {
	if t := l.cfg.Token; t != "" {
		return t, nil
	}
	if l.cfg.Join != nil {
		got, err := l.cfg.Join(ctx)
		return client.Credential(got.Token), err
	}
	data, err := os.ReadFile(l.tokenFile())
	if errors.Is(err, fs.ErrNotExist) {
		return l.register(ctx)
	}
	var stored frame.Credentials
	if err == nil {
		err = json.Unmarshal(data, &stored)
	}
	if err == nil && stored.Token == "" {
		err = errors.New("the file has no token")
	}
	if err != nil {
		return "", fmt.Errorf("read the token of the link: %w", err)
	}
	l.mu.Lock()
	l.id = stored.AgentID
	l.mu.Unlock()
	return client.Credential(stored.Token), nil
}

// register asks for an id at the host and port of the relay. If no relay answers there, it tries the next port once,
// because that is where the public relay registers agents (AR-51). It stores the token before anybody uses it.
func (l *Link) register(ctx context.Context) (client.Credential, error) {
	base := &url.URL{Scheme: "http", Host: l.target.Host, Path: "/register"}
	if l.target.Scheme == "wss" {
		base.Scheme = "https"
	}
	got, err := l.registerAt(ctx, base)
	port, portErr := strconv.Atoi(l.target.Port())
	if errors.Is(err, errNoRelay) && portErr == nil {
		base.Host = net.JoinHostPort(l.target.Hostname(), strconv.Itoa(port+1))
		firstErr := err
		if got, err = l.registerAt(ctx, base); errors.Is(err, errNoRelay) {
			err = fmt.Errorf("%w; the next port, %d, does not answer either", firstErr, port+1)
		}
	}
	if err != nil {
		return "", err
	}
	if !frame.ValidAgentID(got.AgentID) || got.Token == "" || len(got.Token) > 4096 {
		return "", errors.New("the relay's answer to the registration is not usable")
	}
	if err := atomicfile.Write(l.tokenFile(), append(wire.MustMarshal(got), '\n')); err != nil {
		return "", fmt.Errorf("store the token of the link: %w", err)
	}
	return client.Credential(got.Token), nil
}

// errNoRelay means that nothing at the URL answers like an AgentRelay server.
var errNoRelay = errors.New("no AgentRelay server answers the registration")

// registerAt asks for an id at one URL.
func (l *Link) registerAt(ctx context.Context, u *url.URL) (frame.Credentials, error) {
	var got frame.Credentials
	body := wire.Obj().WithOptional("agent_id", l.ownID()).JSON()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), bytes.NewReader(body))
	if err != nil {
		return got, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := l.cfg.HTTP.Do(ctx, client.Owner, req)
	if err != nil {
		return got, fmt.Errorf("%w: %w", errNoRelay, err)
	}
	data, err := client.ReadAll(resp, maxCredentials)
	if err != nil {
		return got, fmt.Errorf("%w: %w", errNoRelay, err)
	}
	var fault frame.Fault
	_ = json.Unmarshal(data, &fault) // a body that is not a fault leaves it empty
	switch {
	case resp.StatusCode == http.StatusOK:
		if err := json.Unmarshal(data, &got); err != nil {
			return got, errNoRelay
		}
		return got, nil
	case fault.Error == "agent_id_taken":
		return got, errIDTaken
	case resp.StatusCode == http.StatusTooManyRequests:
		return got, errTooMany
	case resp.StatusCode == http.StatusForbidden:
		return got, errNotOpen
	case fault.Error == "":
		return got, errNoRelay
	}
	return got, fmt.Errorf("the relay refused the registration with status %d", resp.StatusCode)
}
