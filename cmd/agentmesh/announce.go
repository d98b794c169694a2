package main

import (
	"context"
	"encoding/json"
	"os"
	"time"

	"github.com/agentmesh/agentmesh/node/httpapi"
)

// announce prints what runs, where, and what to try, once it works.
func (p *process) announce(ctx context.Context, address, base string, asJSON bool) error {
	p.awaitListed(ctx)
	if ctx.Err() != nil {
		return nil
	}
	w := where{PID: os.Getpid(), Profile: "local", Address: address, URL: base, Data: p.home.dir}
	if p.cfg.Public() {
		w.Profile = "public"
	}
	if p.registry != nil {
		w.Directory = base + "/v1"
	}
	if p.node != nil {
		card := p.node.Card()
		w.Endpoint, w.AgentID, w.Name = card.Endpoint, card.ID, card.Name
	}
	if addr := p.owner.Addr(); addr != nil {
		w.OwnerAPI = "http://" + addr.String()
	}
	var err error
	if w.Socket, err = httpapi.OwnerSocket(p.home.dir); err != nil {
		return err
	}
	if asJSON {
		line, err := json.Marshal(w)
		if err != nil {
			return err
		}
		p.app.print("%s", line)
		return nil
	}
	listening := ""
	if p.cfg.Public() {
		listening = p.listening(ctx, address)
	}
	p.app.announce(w, listening)
	return nil
}

func (a *app) announce(w where, listening string) {
	rows := [][]string{}
	add := func(what, value string) {
		if value != "" {
			rows = append(rows, []string{"  " + what, value})
		}
	}
	add("directory", w.Directory)
	add("node", w.Endpoint)
	add("agent", string(w.AgentID))
	add("name", w.Name)
	add("data", w.Data)
	add("owner API", w.Socket+" (that is how the other commands reach it)")
	add("and on", w.OwnerAPI)
	add("listening on", listening)
	a.print("agentmesh is running in the %s profile, ctrl-c stops it", w.Profile)
	a.table(rows)
	a.print("")
	a.print("try, in another terminal:")
	if w.Directory != "" {
		a.print("  curl '%s/agents?capability=scheduling'", w.Directory)
	}
	if w.Endpoint != "" {
		a.print("  curl %s", w.Endpoint)
		a.print("  agentmesh page")
	}
	if w.Directory != "" && w.AgentID != "" {
		a.print("  curl %s/agents/%s", w.Directory, w.AgentID)
	}
}

// listedWithin is how long start-up waits for the node's own directory to list it.
const listedWithin = 5 * time.Second

// awaitListed waits until the process's own directory lists its node, so that what is printed works when pasted.
func (p *process) awaitListed(ctx context.Context) {
	if p.node == nil || p.registry == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, listedWithin)
	defer cancel()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		if _, err := p.store.Cards().Get(ctx, string(p.node.ID()), time.Now()); err == nil {
			return
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}
