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

// door is one subtest of [TestFloodsAtEveryDoor]. Each has addresses of its own: a network of the attacker, a newcomer, and
// an office that many honest agents share.
type door struct {
	front
	number int
}

// evil returns an address of the attacker's network for request i. It wears out one address after the other.
func (d *door) evil(i int) string { return fmt.Sprintf("198.18.%d.%d", d.number, i/50%256) }

func (d *door) newcomer() string { return fmt.Sprintf("203.0.113.%d", d.number) }

func (d *door) office() string { return fmt.Sprintf("198.19.%d.7", d.number) }

// flood attacks on several workers until stop is called. It returns when the attacker was refused often enough to have used
// up all that it gets.
func (d *door) flood(refusal int, attack func(i int) (status int)) (stop func()) {
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
					d.t.Errorf("the attacker is answered %d: it broke something", status)
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

// within fails the test if what an honest client does takes too long.
func (d *door) within(what string, do func()) {
	d.t.Helper()
	start := time.Now()
	do()
	if took := time.Since(start); took > apitest.ServedWithin {
		d.t.Errorf("%s took %v, want at most %v", what, took, apitest.ServedWithin)
	}
}

// want makes a request of an honest client.
func (d *door) want(status int, method, from, path string, body []byte, headers ...string) (answer string) {
	d.t.Helper()
	d.within(method+" "+path, func() {
		var got int
		if got, answer = d.call(method, from, path, body, headers...); got != status {
			d.t.Errorf("%s %s from %s is answered %d %s, want %d", method, path, from, got, answer, status)
		}
	})
	return answer
}

// say sends a message of an honest agent.
func (d *door) say(status int, from, name string) {
	d.t.Helper()
	key := meshtest.Key(name)
	d.want(status, http.MethodPost, from, "/agentmesh", d.message(key.Public().AgentID(), key, "hello"))
}

// attackers registers the cards of the attacker.
func (d *door) attackers() []string {
	names := make([]string, attackerCards)
	for i := range names {
		names[i] = fmt.Sprintf("evil-%d-%d", d.number, i)
		d.registerWith(d.evil(i*10), names[i], fmt.Sprintf("token-of-attacker-%d-%d", d.number, i%attackerTokens))
	}
	return names
}

// cards registers an agent of the newcomer and those of the office.
func (d *door) cards() (newcomer string, office []string) {
	newcomer = fmt.Sprintf("newcomer-%d", d.number)
	d.register(d.newcomer(), newcomer)
	for i := range officeAgents {
		office = append(office, fmt.Sprintf("office-%d-%d", d.number, i))
		d.register(d.office(), office[i])
	}
	return newcomer, office
}

// dial opens a WebSocket from a client's address and reads the first message.
func (d *door) dial(from, path, token string) (conn *websocket.Conn, first wire.Value) {
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

func (d *door) read(conn *websocket.Conn) wire.Value {
	d.t.Helper()
	late := time.AfterFunc(time.Minute, conn.Abort)
	defer late.Stop()
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

// run runs a command on the data directory of the process.
func (d *door) run(args ...string) []byte {
	d.t.Helper()
	out, err := agentmeshAt(d.serve.data, args...).Output()
	if err != nil {
		d.t.Fatalf("agentmesh %v: %v", args, err)
	}
	return out
}

// doorsConfig is a public process that serves every protocol.
const doorsConfig = `
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
moltspeak: {serve: "on", agent: me, org: home, registry: true}
agentrelay: {serve: "on", registration: open}
links:
- {name: cats, kind: moltspeak, url: "https://cats.example.org/moltspeak/v0.1/message", options: {peer: known@acme}}
`

// startDoors starts a process in the public profile. The test is its proxy: it names clients in X-Forwarded-For.
func startDoors(t *testing.T, config string, flags ...string) front {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"config.yaml": config, "known.token": "token-of-the-known-participant", "newcomer.token": "token-of-the-newcomer",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f := front{t: t, header: "X-Forwarded-For", serve: &tlsServe{t: t, data: filepath.Join(dir, "data")}}
	f.client = &http.Client{
		Timeout: 30 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 16},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	f.serve.run(append([]string{"--config", filepath.Join(dir, "config.yaml")}, flags...))
	f.address = "http://" + f.serve.where.Address
	return f
}

// TestFloodsAtEveryDoor plays the floods of strangers against real processes: at every door an attacker with 60 cards, 6
// tokens and one network, and beside it an honest newcomer, many honest agents behind one address, and a peer that is
// known. The honest ones are served within 5 seconds while the attack goes on (AM-33, AM-42, AM-43, THREATS 31 and 32).
func TestFloodsAtEveryDoor(t *testing.T) {
	t.Parallel()
	known := meshtest.Key("known").Public().AgentID()
	other := front{t: t, header: "X-Forwarded-For", client: http.DefaultClient, serve: &tlsServe{t: t, data: filepath.Join(t.TempDir(), "other")}}
	other.serve.run([]string{"--roles", "directory"})
	other.address = "http://" + other.serve.where.Address
	all := startDoors(t, fmt.Sprintf(doorsConfig, other.address+"/v1", known))
	all.register("203.0.113.250", "known")
	holds := startDoors(t, fmt.Sprintf("public_url: https://mesh.example.org\naccess: {allow: [%s]}\n"+
		"limits: {messages_total: 0}\nregistration: {per_hour: 0, cards_per_token: 0}\n", known))
	holds.register("203.0.113.250", "known")
	for i, tt := range []struct {
		name string
		at   front
		play func(*door)
	}{
		{"messages", all, floodMessages},
		{"holds", holds, floodHolds},
		{"look-ups", all, func(d *door) { floodLookups(d, other) }},
		{"registrations", all, floodRegistrations},
		{"owner sign-in", all, floodSignIn},
		{"MEW", all, floodMEW},
		{"MESS", all, floodMESS},
		{"MoltSpeak", all, floodMoltSpeak},
		{"AgentRelay", all, floodAgentRelay},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := &door{tt.at, 1 + i}
			d.t = t
			tt.play(d)
		})
	}
}

func floodMessages(d *door) {
	evil := d.attackers()
	newcomer, office := d.cards()
	defer d.flood(http.StatusTooManyRequests, func(i int) int {
		key := meshtest.Key(evil[i%len(evil)])
		status, _ := d.post(d.evil(i), "/agentmesh", d.message(key.Public().AgentID(), key, "hello"))
		return status
	})()
	d.say(http.StatusAccepted, d.newcomer(), newcomer)
	for _, name := range office {
		d.say(http.StatusAccepted, d.office(), name)
	}
	d.say(http.StatusOK, d.evil(0), "known")
}

func floodHolds(d *door) {
	const cards = 200
	newcomer, office := d.cards()
	evil := make([]string, cards)
	for i := range evil {
		evil[i] = fmt.Sprint("evil-hold-", i)
		d.register(d.evil(i*10), evil[i])
	}
	defer d.flood(http.StatusTooManyRequests, func(i int) int {
		key := meshtest.Key(evil[i%len(evil)])
		status, _ := d.post(d.evil(i), "/agentmesh", d.message(key.Public().AgentID(), key, "hello"))
		return status
	})()
	d.say(http.StatusAccepted, d.newcomer(), newcomer)
	d.say(http.StatusOK, d.evil(0), "known")
	var rejected struct{ Rejected int }
	if out := d.run("approvals", "reject", "--all-strangers", "--json"); json.Unmarshal(out, &rejected) != nil || rejected.Rejected != cards {
		d.t.Errorf("one command rejected %s, want %d", out, cards)
	}
	for _, name := range office {
		d.say(http.StatusAccepted, d.office(), name)
	}
	var waiting struct{ Items []struct{} }
	out := d.run("approvals", "list", "--json")
	if err := json.Unmarshal(out, &waiting); err != nil {
		d.t.Fatal(err)
	}
	// The card that gave its place to the newcomer was not rejected and may be back.
	if n := len(waiting.Items); n < len(office) || n > len(office)+1 {
		d.t.Errorf("%d approvals wait, want those of the office: %.300s", n, out)
	}
}

func floodLookups(d *door, other front) {
	newcomer := fmt.Sprintf("newcomer-%d", d.number)
	var office []string
	for i := range officeAgents {
		office = append(office, fmt.Sprintf("office-%d-%d", d.number, i))
	}
	for _, name := range append([]string{newcomer}, office...) {
		other.register("127.0.0.1", name) // so that our process must ask for it
	}
	key := meshtest.Key("evil")
	defer d.flood(http.StatusTooManyRequests, func(i int) int {
		status, _ := d.post(d.evil(i), "/agentmesh", d.message(wire.AgentID(fmt.Sprint("am_made_up_", i)), key, "hello"))
		return status
	})()
	d.say(http.StatusAccepted, d.newcomer(), newcomer)
	for _, name := range office {
		d.say(http.StatusAccepted, d.office(), name)
	}
	d.say(http.StatusOK, d.evil(0), "known")
}

func floodRegistrations(d *door) {
	defer d.flood(http.StatusTooManyRequests, func(i int) int {
		card := meshtest.Card(d.t, fmt.Sprintf("evil-%d-%d", d.number, i), "https://evil.example.org/agentmesh")
		status, _ := d.post(d.evil(i), "/v1/agents", card.Tree.JSON(), "Authorization", fmt.Sprintf("Bearer token-of-attacker-%d-%d", d.number, i%attackerTokens))
		return status
	})()
	list := func(from, name string) {
		card := meshtest.Card(d.t, name, "https://"+name+".example.org/agentmesh")
		bearer := []string{"Authorization", "Bearer credential-of-" + name}
		d.want(http.StatusCreated, http.MethodPost, from, "/v1/agents", card.Tree.JSON(), bearer...)
		d.want(http.StatusOK, http.MethodGet, from, "/v1/agents/"+string(card.ID), nil)
	}
	list(d.newcomer(), fmt.Sprintf("newcomer-%d", d.number))
	for i := range officeAgents {
		list(d.office(), fmt.Sprintf("office-%d-%d", d.number, i))
	}
	renew := "/v1/agents/" + string(meshtest.Key("known").Public().AgentID())
	d.want(http.StatusOK, http.MethodPut, "203.0.113.250", renew, nil, "Authorization", "Bearer credential-of-known")
}

// floodSignIn guesses the code of the owner's page. All clients of that listener are on one machine.
func floodSignIn(d *door) {
	d.address = d.serve.where.OwnerAPI
	const login = httpapi.PagePath + "/login"
	form := []string{"Content-Type", "application/x-www-form-urlencoded", "Origin", d.address}
	defer d.flood(http.StatusForbidden, func(i int) int {
		status, _ := d.post(d.evil(i), login, fmt.Appendf(nil, "secret=AAAAA-%05d", i), form...)
		return status
	})()
	var page httpapi.SignIn
	d.within("agentmesh page", func() {
		if err := json.Unmarshal(d.run("page", "--json"), &page); err != nil {
			d.t.Fatal(err)
		}
	})
	d.want(http.StatusSeeOther, http.MethodPost, d.newcomer(), login, []byte("secret="+page.Code), form...)
	d.want(http.StatusForbidden, http.MethodPost, d.newcomer(), login, []byte("secret="+page.Code), form...) // good once
	token, err := os.ReadFile(filepath.Join(d.serve.data, httpapi.TokenFile))
	if err != nil {
		d.t.Fatal(err)
	}
	d.want(http.StatusOK, http.MethodGet, d.office(), "/owner/status", nil, "Authorization", "Bearer "+strings.TrimSpace(string(token)))
}

func floodMEW(d *door) {
	d.address = "http://" + d.serve.where.Address
	const participants = "/participants?space=demo"
	conn, welcome := d.dial("203.0.113.250", "/ws?space=demo", "token-of-the-known-participant")
	if welcome.GetStr("kind") != "system/welcome" {
		d.t.Fatalf("the first envelope is %s", welcome.JSON())
	}
	defer d.flood(http.StatusTooManyRequests, func(i int) int {
		status, _ := d.call(http.MethodGet, d.evil(i), participants, nil, "Authorization", fmt.Sprint("Bearer guess-", i%attackerTokens))
		return status
	})()
	d.want(http.StatusForbidden, http.MethodGet, d.newcomer(), participants, nil, "Authorization", "Bearer misspelled")
	if _, first := d.dial(d.newcomer(), "/ws?space=demo", "token-of-the-newcomer"); first.GetStr("kind") != "system/welcome" {
		d.t.Errorf("the newcomer is answered %s", first.JSON())
	}
	if v := d.read(conn); v.GetStr("kind") != "system/presence" {
		d.t.Errorf("the participant that was there before got %s", v.JSON())
	}
	for range officeAgents {
		d.want(http.StatusOK, http.MethodGet, d.office(), participants, nil, "Authorization", "Bearer token-of-the-newcomer")
	}
}

func floodMESS(d *door) {
	const api = "/api/v1/exchanges/home/"
	register := func(from, name string) (key string) {
		answer := d.want(http.StatusCreated, http.MethodPost, from, api+"register", []byte(`{"executor_id":"`+name+`"}`), "Content-Type", "application/json")
		var got struct {
			Key string `json:"api_key"`
		}
		if err := json.Unmarshal([]byte(answer), &got); err != nil {
			d.t.Fatalf("%s: %v", answer, err)
		}
		return got.Key
	}
	list := func(from, key string) {
		d.want(http.StatusOK, http.MethodGet, from, api+"requests", nil, "Authorization", "Bearer "+key)
	}
	known := register("203.0.113.250", "known")
	defer d.flood(http.StatusTooManyRequests, func(i int) int {
		if i%2 == 0 {
			status, _ := d.post(d.evil(i), api+"register", fmt.Appendf(nil, `{"executor_id":"evil-%d"}`, i), "Content-Type", "application/json")
			return status
		}
		status, _ := d.call(http.MethodGet, d.evil(i), api+"requests", nil, "Authorization", fmt.Sprintf("Bearer mess_home_%032d", i%attackerTokens))
		return status
	})()
	list(d.newcomer(), register(d.newcomer(), "newcomer"))
	for i := range officeAgents {
		list(d.office(), register(d.office(), fmt.Sprint("office-", i)))
	}
	list(d.evil(0), known)
	d.want(http.StatusUnauthorized, http.MethodGet, d.newcomer(), api+"requests", nil, "Authorization", "Bearer misspelled")
}

// moltspeakPing returns a signed ping of a MoltSpeak agent.
func (d *door) moltspeakPing(name string) []byte {
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

func floodMoltSpeak(d *door) {
	const message, agents = "/moltspeak/v0.1/message", "/api/v1/agents"
	headers := []string{"Content-Type", "application/json", "Authorization", "Bearer a-token-of-a-moltspeak-agent"}
	entry := func(agent string) []byte {
		return fmt.Appendf(nil, `{"agent_name":%q,"org":"acme","public_key":"ed25519:%s","endpoint":"https://%s.example.org"}`,
			agent, meshtest.Key(agent+"@acme").Public().Text64(), agent)
	}
	defer d.flood(http.StatusTooManyRequests, func(i int) int {
		agent := fmt.Sprint("evil-", i)
		if i%2 == 0 {
			status, _ := d.post(d.evil(i), agents, entry(agent), headers...)
			return status
		}
		status, _ := d.post(d.evil(i), message, d.moltspeakPing(agent+"@acme"), headers...)
		return status
	})()
	serve := func(from, agent string) {
		d.want(http.StatusCreated, http.MethodPost, from, agents, entry(agent), headers...)
		d.want(http.StatusOK, http.MethodPost, from, message, d.moltspeakPing(agent+"@acme"), headers...)
	}
	serve(d.newcomer(), "newcomer")
	for i := range officeAgents {
		serve(d.office(), fmt.Sprint("office-", i))
	}
	d.want(http.StatusOK, http.MethodPost, "203.0.113.250", message, d.moltspeakPing("known@acme"), headers...)
}

func floodAgentRelay(d *door) {
	register := func(from, body string) (token string) {
		answer := d.want(http.StatusOK, http.MethodPost, from, "/register", []byte(body))
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
			status, _ := d.post(d.evil(i), "/register", nil)
			return status
		}
		status, _ := d.call(http.MethodGet, d.evil(i), fmt.Sprint("/arc?token=guess", i%attackerTokens), nil, connects...)
		return status
	})()
	if _, first := d.dial(d.newcomer(), "/arc", register(d.newcomer(), `{"agent_id":"newcomer"}`)); first.GetStr("type") != "welcome" {
		d.t.Errorf("the newcomer is answered %s", first.JSON())
	}
	for range officeAgents {
		d.dial(d.office(), "/arc", register(d.office(), ""))
	}
	if err := known.Send(websocket.Text([]byte(`{"to":["relay"],"type":"ping"}`))); err != nil {
		d.t.Fatal(err)
	}
	if v := d.read(known); v.GetStr("type") != "pong" {
		d.t.Errorf("the agent that was connected before got %s", v.JSON())
	}
}
