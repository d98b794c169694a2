//go:build slow

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/httpapi/apitest"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

const (
	attackerCards  = 60
	attackerTokens = 6
	officeAgents   = 8 // honest agents behind one address
)

// floodTarget is the process of one subtest of [TestFloodsAtEveryDoor]. Each subtest has its own client addresses: the
// attacker's network, a newcomer, and an office whose honest agents share one address.
type floodTarget struct {
	frontend
	number int
}

// attackerAddr returns the attacker's address for request i. The attacker uses each address for 50 requests.
func (d *floodTarget) attackerAddr(i int) string {
	return fmt.Sprintf("198.18.%d.%d", d.number, i/50%256)
}

func (d *floodTarget) newcomerAddr() string { return fmt.Sprintf("203.0.113.%d", d.number) }

func (d *floodTarget) officeAddr() string { return fmt.Sprintf("198.19.%d.7", d.number) }

// flood attacks until the caller calls stop. It returns when the attacker must have used up its allowance.
func (d *floodTarget) flood(refusal int, attack func(i int) (status int)) (stop func()) {
	d.t.Helper()
	const workers, enough = 4, 100
	var stopped atomic.Bool
	var group sync.WaitGroup
	var refused atomic.Int64
	spent := make(chan struct{})
	for worker := range workers {
		group.Go(func() {
			for i := worker; !stopped.Load(); i += workers {
				switch status := attack(i); {
				case status >= http.StatusInternalServerError:
					d.t.Errorf("the attacker gets %d: the attack broke something", status)
				case status == refusal && refused.Add(1) == enough:
					close(spent)
				}
			}
		})
	}
	stop = func() { stopped.Store(true); group.Wait() }
	select {
	case <-spent:
	case <-time.After(2 * time.Minute):
		stop()
		d.t.Fatalf("the attacker was refused %d times, want %d", refused.Load(), enough)
	}
	return stop
}

// within runs an action of an honest client, and fails the test if the action takes too long.
func (d *floodTarget) within(what string, do func()) {
	d.t.Helper()
	start := time.Now()
	do()
	if took := time.Since(start); took > apitest.ServedWithin {
		d.t.Errorf("%s took %v, want at most %v", what, took, apitest.ServedWithin)
	}
}

// mustCall makes a request of an honest client, and checks the status of the answer and the time.
func (d *floodTarget) mustCall(status int, method, from, path string, body []byte, headers ...string) (answer string) {
	d.t.Helper()
	d.within(method+" "+path, func() {
		var got int
		if got, answer = d.call(method, from, path, body, headers...); got != status {
			d.t.Errorf("%s %s from %s = %d %s, want %d", method, path, from, got, answer, status)
		}
	})
	return answer
}

func (d *floodTarget) mustSend(status int, from, name string) {
	d.t.Helper()
	key := meshtest.Key(name)
	d.mustCall(status, http.MethodPost, from, "/agentmesh", d.message(key.Public().AgentID(), key, "hello"))
}

func (d *floodTarget) registerAttackers() []string {
	names := make([]string, attackerCards)
	for i := range names {
		names[i] = fmt.Sprintf("evil-%d-%d", d.number, i)
		d.registerWith(d.attackerAddr(i*10), names[i], fmt.Sprintf("token-of-attacker-%d-%d", d.number, i%attackerTokens))
	}
	return names
}

func (d *floodTarget) registerHonest() (newcomer string, office []string) {
	newcomer = fmt.Sprintf("newcomer-%d", d.number)
	d.register(d.newcomerAddr(), newcomer)
	for i := range officeAgents {
		office = append(office, fmt.Sprintf("office-%d-%d", d.number, i))
		d.register(d.officeAddr(), office[i])
	}
	return newcomer, office
}

// dial opens a WebSocket from a client address and reads the first message.
func (d *floodTarget) dial(from, path, token string) (conn *websocket.Conn, first wire.Value) {
	d.t.Helper()
	tcp := func(ctx context.Context, u *url.URL) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", u.Host)
	}
	d.within("connect to "+path, func() {
		var err error
		conn, err = websocket.Dial(d.t.Context(), tcp, "ws"+strings.TrimPrefix(d.address, "http")+path, websocket.Options{
			Header: http.Header{"Authorization": {"Bearer " + token}, "X-Forwarded-For": {from}}, ReadLimit: 1 << 20,
		})
		if err != nil {
			d.t.Fatalf("connect to %s from %s: %v", path, from, err)
		}
		d.t.Cleanup(func() {
			conn.Abort()
			for {
				if _, _, err := conn.Read(); err != nil {
					return
				}
			}
		})
		first = d.read(conn)
	})
	return conn, first
}

func (d *floodTarget) read(conn *websocket.Conn) wire.Value {
	d.t.Helper()
	timeout := time.AfterFunc(time.Minute, conn.Abort)
	defer timeout.Stop()
	_, data, err := conn.Read()
	if err != nil {
		d.t.Fatal(err)
	}
	v, err := wire.Parse(append([]byte(nil), data...))
	if err != nil {
		d.t.Fatal(err)
	}
	return v
}

func (d *floodTarget) run(args ...string) []byte {
	d.t.Helper()
	out, err := agentmeshAt(d.serve.data, args...).Output()
	if err != nil {
		d.t.Fatalf("agentmesh %v: %v", args, err)
	}
	return out
}

// floodConfig is the configuration of a public process that serves all protocols except A2A.
const floodConfig = `
public_url: https://mesh.example.org
directories: [https://mesh.example.org/v1, %s]
network: {allow_private: [127.0.0.0/8]}
access: {allow: [%s]}
owner_api: {listen: "127.0.0.1:0"}
mess: {serve: "on", registration: open}
mew:
  spaces:
  - id: demo
    participants:
    - {name: known, capabilities: [chat], token_file: known.token}
    - {name: newcomer, capabilities: [chat], token_file: newcomer.token}
moltspeak: {serve: "on", agent: me, org: home, registry: "on"}
agentrelay: {serve: "on", registration: open}
links:
- {name: cats, kind: moltspeak, url: "https://cats.example.org/moltspeak/v0.1/message", options: {peer: known@acme}}
`

// startFloodTarget starts a process in the public profile, behind the test as a proxy that sets X-Forwarded-For.
func startFloodTarget(t *testing.T, config string, flags ...string) frontend {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"config.yaml": config, "known.token": "token-of-the-known-participant", "newcomer.token": "token-of-the-newcomer",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f := frontend{t: t, header: "X-Forwarded-For", serve: &tlsServe{t: t, data: filepath.Join(dir, "data")}}
	f.client = &http.Client{
		Timeout: 30 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 16},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	f.serve.run(append([]string{"--config", filepath.Join(dir, "config.yaml")}, flags...))
	f.address = "http://" + f.serve.info.Address
	return f
}

// TestFloodsAtEveryDoor floods every protocol of real processes. The attacker has 60 cards, 6 tokens and one network.
// The honest clients are a newcomer, many agents behind one address, and a known peer. They are served within 5 seconds
// while the attack continues (AM-33, AM-42, AM-43, THREATS 31 and 32).
func TestFloodsAtEveryDoor(t *testing.T) {
	t.Parallel()
	known := meshtest.Key("known").Public().AgentID()
	other := frontend{t: t, header: "X-Forwarded-For", client: http.DefaultClient, serve: &tlsServe{t: t, data: filepath.Join(t.TempDir(), "other")}}
	other.serve.run([]string{"--roles", "directory"})
	other.address = "http://" + other.serve.info.Address
	all := startFloodTarget(t, fmt.Sprintf(floodConfig, other.address+"/v1", known))
	all.register("203.0.113.250", "known")
	holds := startFloodTarget(t, fmt.Sprintf("public_url: https://mesh.example.org\naccess: {allow: [%s]}\n"+
		"limits: {messages_total: 0}\nregistration: {per_hour: 0, cards_per_token: 0}\n", known))
	holds.register("203.0.113.250", "known")
	// All messages share the pool of strangers, and the attackers of two subtests would use it up.
	a2a := startFloodTarget(t, "public_url: https://mesh.example.org\na2a: {serve: \"on\"}\n")
	lookups := startFloodTarget(t, fmt.Sprintf("public_url: https://mesh.example.org\ndirectories: [https://mesh.example.org/v1, %s]\n"+
		"network: {allow_private: [127.0.0.0/8]}\naccess: {allow: [%s]}\n", other.address+"/v1", known))
	lookups.register("203.0.113.250", "known")
	networks := startFloodTarget(t, "public_url: https://mesh.example.org\n")
	for i, tt := range []struct {
		name     string
		frontend frontend
		run      func(*floodTarget)
	}{
		{"messages", all, floodMessages},
		{"holds", holds, floodHolds},
		{"look-ups", lookups, func(d *floodTarget) { floodLookups(d, other) }},
		{"registrations", all, floodRegistrations},
		{"owner sign-in", all, floodSignIn},
		{"MEW", all, floodMEW},
		{"MESS", all, floodMESS},
		{"MoltSpeak", all, floodMoltSpeak},
		{"AgentRelay", all, floodAgentRelay},
		{"A2A", a2a, floodA2A},
		{"networks", networks, floodNetworks},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := &floodTarget{tt.frontend, 1 + i}
			d.t = t
			tt.run(d)
		})
	}
}

func floodMessages(d *floodTarget) {
	evil := d.registerAttackers()
	newcomer, office := d.registerHonest()
	defer d.flood(http.StatusTooManyRequests, func(i int) int {
		key := meshtest.Key(evil[i%len(evil)])
		status, _ := d.post(d.attackerAddr(i), "/agentmesh", d.message(key.Public().AgentID(), key, "hello"))
		return status
	})()
	d.mustSend(http.StatusAccepted, d.newcomerAddr(), newcomer)
	for _, name := range office {
		d.mustSend(http.StatusAccepted, d.officeAddr(), name)
	}
	d.mustSend(http.StatusOK, d.attackerAddr(0), "known")
}

// floodNetworks attacks from 16 networks: first from one after the other, then from all in turn.
func floodNetworks(d *floodTarget) {
	const networks = 16
	addr := func(i int) string { return fmt.Sprintf("198.%d.7.7", 20+i%networks) }
	send := func(i int) int {
		key := meshtest.Key(fmt.Sprint("evil-network-", i%networks))
		status, _ := d.post(addr(i), "/agentmesh", d.message(key.Public().AgentID(), key, "hello"))
		return status
	}
	for i := range networks {
		name := fmt.Sprint("evil-network-", i)
		d.registerWith(addr(i), name, "token-of-"+name)
	}
	for i := range 3 {
		d.register(fmt.Sprintf("203.%d.113.7", i), fmt.Sprint("newcomer-network-", i))
	}
	for i := range networks {
		for range 50 {
			send(i)
		}
	}
	defer d.flood(http.StatusTooManyRequests, send)()
	for i := range 3 {
		d.mustSend(http.StatusAccepted, fmt.Sprintf("203.%d.113.7", i), fmt.Sprint("newcomer-network-", i))
	}
}

func floodHolds(d *floodTarget) {
	const cards = 200
	newcomer, office := d.registerHonest()
	evil := make([]string, cards)
	for i := range evil {
		evil[i] = fmt.Sprint("evil-hold-", i)
		d.register(d.attackerAddr(i*10), evil[i])
	}
	defer d.flood(http.StatusTooManyRequests, func(i int) int {
		card := i
		if i >= cards { // each card has a hold; those with the newest holds, which must make room, go on
			card = cards - 10 + i%10
		}
		key := meshtest.Key(evil[card])
		status, _ := d.post(d.attackerAddr(i), "/agentmesh", d.message(key.Public().AgentID(), key, "hello"))
		return status
	})()
	d.mustSend(http.StatusAccepted, d.newcomerAddr(), newcomer)
	d.mustSend(http.StatusOK, d.attackerAddr(0), "known")
	var rejected struct{ Rejected int }
	if out := d.run("approvals", "reject", "--all-strangers", "--json"); json.Unmarshal(out, &rejected) != nil || rejected.Rejected != cards {
		d.t.Errorf("one command rejected %s, want %d", out, cards)
	}
	for _, name := range office {
		d.mustSend(http.StatusAccepted, d.officeAddr(), name)
	}
	var waiting struct{ Items []struct{} }
	out := d.run("approvals", "list", "--json")
	if err := json.Unmarshal(out, &waiting); err != nil {
		d.t.Fatal(err)
	}
	// The attacker's card whose hold made room for the newcomer's was not rejected, and may wait again.
	if n := len(waiting.Items); n < len(office) || n > len(office)+1 {
		d.t.Errorf("%d approvals wait, want those of the office: %.300s", n, out)
	}
}

func floodLookups(d *floodTarget, other frontend) {
	newcomer := fmt.Sprintf("newcomer-%d", d.number)
	var office []string
	for i := range officeAgents {
		office = append(office, fmt.Sprintf("office-%d-%d", d.number, i))
	}
	for _, name := range append([]string{newcomer}, office...) {
		other.register("127.0.0.1", name) // so that the process under test must ask the other directory
	}
	key := meshtest.Key("evil")
	defer d.flood(http.StatusTooManyRequests, func(i int) int {
		status, _ := d.post(d.attackerAddr(i), "/agentmesh", d.message(wire.AgentID(fmt.Sprint("am_made_up_", i)), key, "hello"))
		return status
	})()
	d.mustSend(http.StatusAccepted, d.newcomerAddr(), newcomer)
	for _, name := range office {
		d.mustSend(http.StatusAccepted, d.officeAddr(), name)
	}
	d.mustSend(http.StatusOK, d.attackerAddr(0), "known")
}

func floodRegistrations(d *floodTarget) {
	defer d.flood(http.StatusTooManyRequests, func(i int) int {
		card := meshtest.Card(d.t, fmt.Sprintf("evil-%d-%d", d.number, i), "https://evil.example.org/agentmesh")
		status, _ := d.post(d.attackerAddr(i), "/v1/agents", card.Tree.JSON(), "Authorization", fmt.Sprintf("Bearer token-of-attacker-%d-%d", d.number, i%attackerTokens))
		return status
	})()
	list := func(from, name string) {
		card := meshtest.Card(d.t, name, "https://"+name+".example.org/agentmesh")
		bearer := []string{"Authorization", "Bearer credential-of-" + name}
		d.mustCall(http.StatusCreated, http.MethodPost, from, "/v1/agents", card.Tree.JSON(), bearer...)
		d.mustCall(http.StatusOK, http.MethodGet, from, "/v1/agents/"+string(card.ID), nil)
	}
	list(d.newcomerAddr(), fmt.Sprintf("newcomer-%d", d.number))
	for i := range officeAgents {
		list(d.officeAddr(), fmt.Sprintf("office-%d-%d", d.number, i))
	}
	renew := "/v1/agents/" + string(meshtest.Key("known").Public().AgentID())
	d.mustCall(http.StatusOK, http.MethodPut, "203.0.113.250", renew, nil, "Authorization", "Bearer credential-of-known")
}

// floodSignIn guesses the sign-in code of the owner's page. All clients of that listener are on the same machine.
func floodSignIn(d *floodTarget) {
	d.address = d.serve.info.OwnerAPI
	const login = httpapi.PagePath + "/login"
	form := []string{"Content-Type", "application/x-www-form-urlencoded", "Origin", d.address}
	defer d.flood(http.StatusForbidden, func(i int) int {
		status, _ := d.post(d.attackerAddr(i), login, fmt.Appendf(nil, "secret=AAAAA-%05d", i), form...)
		return status
	})()
	var page httpapi.SignIn
	d.within("agentmesh page", func() {
		if err := json.Unmarshal(d.run("page", "--json"), &page); err != nil {
			d.t.Fatal(err)
		}
	})
	d.mustCall(http.StatusSeeOther, http.MethodPost, d.newcomerAddr(), login, []byte("secret="+page.Code), form...)
	d.mustCall(http.StatusForbidden, http.MethodPost, d.newcomerAddr(), login, []byte("secret="+page.Code), form...) // the code is valid only once
	token, err := os.ReadFile(filepath.Join(d.serve.data, httpapi.TokenFile))
	if err != nil {
		d.t.Fatal(err)
	}
	d.mustCall(http.StatusOK, http.MethodGet, d.officeAddr(), "/owner/status", nil, "Authorization", "Bearer "+strings.TrimSpace(string(token)))
}

func floodMEW(d *floodTarget) {
	d.address = "http://" + d.serve.info.Address
	const participants = "/participants?space=demo"
	conn, welcome := d.dial("203.0.113.250", "/ws?space=demo", "token-of-the-known-participant")
	if welcome.GetStr("kind") != "system/welcome" {
		d.t.Fatalf("the first envelope is %s", welcome.JSON())
	}
	defer d.flood(http.StatusTooManyRequests, func(i int) int {
		status, _ := d.call(http.MethodGet, d.attackerAddr(i), participants, nil, "Authorization", fmt.Sprint("Bearer guess-", i%attackerTokens))
		return status
	})()
	d.mustCall(http.StatusForbidden, http.MethodGet, d.newcomerAddr(), participants, nil, "Authorization", "Bearer misspelled")
	if _, first := d.dial(d.newcomerAddr(), "/ws?space=demo", "token-of-the-newcomer"); first.GetStr("kind") != "system/welcome" {
		d.t.Errorf("the newcomer is answered %s", first.JSON())
	}
	if v := d.read(conn); v.GetStr("kind") != "system/presence" {
		d.t.Errorf("the participant that was there before got %s", v.JSON())
	}
	for range officeAgents {
		d.mustCall(http.StatusOK, http.MethodGet, d.officeAddr(), participants, nil, "Authorization", "Bearer token-of-the-newcomer")
	}
}

func floodMESS(d *floodTarget) {
	const api = "/api/v1/exchanges/home/"
	register := func(from, name string) (key string) {
		answer := d.mustCall(http.StatusCreated, http.MethodPost, from, api+"register", []byte(`{"executor_id":"`+name+`"}`), "Content-Type", "application/json")
		var got struct {
			Key string `json:"api_key"`
		}
		if err := json.Unmarshal([]byte(answer), &got); err != nil {
			d.t.Fatalf("%s: %v", answer, err)
		}
		return got.Key
	}
	list := func(from, key string) {
		d.mustCall(http.StatusOK, http.MethodGet, from, api+"requests", nil, "Authorization", "Bearer "+key)
	}
	known := register("203.0.113.250", "known")
	defer d.flood(http.StatusTooManyRequests, func(i int) int {
		if i%2 == 0 {
			status, _ := d.post(d.attackerAddr(i), api+"register", fmt.Appendf(nil, `{"executor_id":"evil-%d"}`, i), "Content-Type", "application/json")
			return status
		}
		status, _ := d.call(http.MethodGet, d.attackerAddr(i), api+"requests", nil, "Authorization", fmt.Sprintf("Bearer mess_home_%032d", i%attackerTokens))
		return status
	})()
	list(d.newcomerAddr(), register(d.newcomerAddr(), "newcomer"))
	for i := range officeAgents {
		list(d.officeAddr(), register(d.officeAddr(), fmt.Sprint("office-", i)))
	}
	list(d.attackerAddr(0), known)
	d.mustCall(http.StatusUnauthorized, http.MethodGet, d.newcomerAddr(), api+"requests", nil, "Authorization", "Bearer misspelled")
}

func (d *floodTarget) moltspeakPing(name string) []byte {
	key := meshtest.Key(name)
	from, _ := message.ParseName(name)
	from.Key = "ed25519:" + key.Public().Text64()
	tree := message.Draft{
		ID: string(wire.NewMessageID()), Op: message.OpPing, Time: time.Now(), From: from, To: message.Agent{Agent: "me", Org: "home"},
		P: wire.Obj(wire.Member{Key: "nonce", Value: wire.Int(1)}), Class: message.Internal,
	}.Tree()
	sig, err := key.Sign(signing.Canonical(tree, signing.Python))
	if err != nil {
		d.t.Error(err)
	}
	return tree.With("sig", wire.Text("ed25519:"+sig)).JSON()
}

func floodMoltSpeak(d *floodTarget) {
	const message, agents = "/moltspeak/v0.1/message", "/api/v1/agents"
	headers := []string{"Content-Type", "application/json", "Authorization", "Bearer a-token-of-a-moltspeak-agent"}
	entry := func(agent string) []byte {
		return fmt.Appendf(nil, `{"agent_name":%q,"org":"acme","public_key":"ed25519:%s","endpoint":"https://%s.example.org"}`,
			agent, meshtest.Key(agent+"@acme").Public().Text64(), agent)
	}
	defer d.flood(http.StatusTooManyRequests, func(i int) int {
		agent := fmt.Sprint("evil-", i)
		if i%2 == 0 {
			status, _ := d.post(d.attackerAddr(i), agents, entry(agent), headers...)
			return status
		}
		status, _ := d.post(d.attackerAddr(i), message, d.moltspeakPing(agent+"@acme"), headers...)
		return status
	})()
	serve := func(from, agent string) {
		d.mustCall(http.StatusCreated, http.MethodPost, from, agents, entry(agent), headers...)
		d.mustCall(http.StatusOK, http.MethodPost, from, message, d.moltspeakPing(agent+"@acme"), headers...)
	}
	serve(d.newcomerAddr(), "newcomer")
	for i := range officeAgents {
		serve(d.officeAddr(), fmt.Sprint("office-", i))
	}
	d.mustCall(http.StatusOK, http.MethodPost, "203.0.113.250", message, d.moltspeakPing("known@acme"), headers...)
}

func floodAgentRelay(d *floodTarget) {
	register := func(from, body string) (token string) {
		answer := d.mustCall(http.StatusOK, http.MethodPost, from, "/register", []byte(body))
		var got struct{ Token string }
		if err := json.Unmarshal([]byte(answer), &got); err != nil || got.Token == "" {
			d.t.Fatalf("%s: %v", answer, err)
		}
		return got.Token
	}
	known, welcome := d.dial("203.0.113.250", "/arc", register("203.0.113.250", `{"agent_id":"known"}`))
	if welcome.GetStr("type") != "welcome" {
		d.t.Fatalf("the first frame is %s", welcome.JSON())
	}
	connects := []string{"Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA=="}
	defer d.flood(http.StatusTooManyRequests, func(i int) int {
		if i%2 == 0 {
			status, _ := d.post(d.attackerAddr(i), "/register", nil)
			return status
		}
		status, _ := d.call(http.MethodGet, d.attackerAddr(i), fmt.Sprint("/arc?token=guess", i%attackerTokens), nil, connects...)
		return status
	})()
	if _, first := d.dial(d.newcomerAddr(), "/arc", register(d.newcomerAddr(), `{"agent_id":"newcomer"}`)); first.GetStr("type") != "welcome" {
		d.t.Errorf("the newcomer is answered %s", first.JSON())
	}
	for range officeAgents {
		d.dial(d.officeAddr(), "/arc", register(d.officeAddr(), ""))
	}
	if err := known.Send(websocket.Text([]byte(`{"to":["relay"],"type":"ping"}`))); err != nil {
		d.t.Fatal(err)
	}
	if v := d.read(known); v.GetStr("type") != "pong" {
		d.t.Errorf("the agent that was connected before got %s", v.JSON())
	}
}

// floodA2A guesses tokens, and sends messages and lists tasks with six tokens. Honest callers have their own.
func floodA2A(d *floodTarget) {
	const door = "/a2a/v1/message:send"
	token := func(name string) []string {
		return []string{"Authorization", "Bearer " + strings.TrimSpace(string(d.run("a2a", "token", "add", name)))}
	}
	send := func(from, id string, token []string) (int, string) {
		body := fmt.Appendf(nil, `{"message":{"messageId":%q,"role":"ROLE_USER","parts":[{"text":"hello"}]},"configuration":{"returnImmediately":true}}`, id)
		return d.post(from, door, body, token...)
	}
	var evil [][]string
	for i := range attackerTokens {
		evil = append(evil, token(fmt.Sprint("evil-", i)))
	}
	newcomer, known := token("newcomer"), token("known")
	if status, answer := send("203.0.113.250", "first", known); status != http.StatusOK {
		d.t.Fatalf("a known caller = %d %s", status, answer)
	}
	defer d.flood(http.StatusTooManyRequests, func(i int) int {
		with := evil[i%len(evil)]
		if i%3 == 0 {
			with = []string{"Authorization", fmt.Sprint("Bearer guess-", i)}
		}
		if i%5 == 0 {
			status, _ := d.call(http.MethodGet, d.attackerAddr(i), "/a2a/v1/tasks?pageSize=100", nil, with...)
			return status
		}
		status, _ := send(d.attackerAddr(i), fmt.Sprint("m", i), with)
		return status
	})()
	serve := func(from, id string, token []string) {
		d.within("A2A message "+id, func() {
			if status, answer := send(from, id, token); status != http.StatusOK || !strings.Contains(answer, "TASK_STATE_WORKING") {
				d.t.Errorf("message %s from %s = %d %s", id, from, status, answer)
			}
		})
	}
	serve(d.newcomerAddr(), "m1", newcomer)
	d.mustCall(http.StatusUnauthorized, http.MethodGet, d.newcomerAddr(), "/a2a/v1/tasks", nil, "Authorization", "Bearer misspelled")
	d.mustCall(http.StatusOK, http.MethodGet, d.newcomerAddr(), "/.well-known/agent-card.json", nil)
	for i := range officeAgents {
		serve(d.officeAddr(), fmt.Sprint("office-", i), token(fmt.Sprint("office-", i)))
	}
	d.mustCall(http.StatusOK, http.MethodGet, "203.0.113.250", "/a2a/v1/tasks", nil, known...)
}
