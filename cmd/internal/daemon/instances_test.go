//go:build slow

package daemon

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store/postgres"
	"github.com/agentmesh/agentmesh/store/postgres/pgtest"
)

// envInstance has the data directory of a process that serves instead of running the tests.
const envInstance = "AGENTMESH_TEST_INSTANCE"

func TestMain(m *testing.M) {
	if dir := os.Getenv(envInstance); dir != "" {
		if err := serveInstance(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(pgtest.Main(m))
}

func serveInstance(dir string) error {
	options := func() (Options, error) {
		src := config.Source{File: filepath.Join(dir, "agentmesh.yaml")}
		cfg, err := src.LoadAndCheck(LinkKinds())
		return Options{
			Config: cfg, Source: src, Dir: datadir.Dir(dir), Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
			Passphrase: func() ([]byte, error) { return nil, nil }, Note: func(string, ...any) {},
		}, err
	}
	o, err := options()
	if err != nil {
		return err
	}
	return Run(context.Background(), o, options, func(_ context.Context, _ *Process, info ServeInfo) error {
		_, err := fmt.Println(info.Address)
		return err
	})
}

// instance is a process of a directory that hosts a relay.
type instance struct {
	t   *testing.T
	url string
	cmd *exec.Cmd
	log bytes.Buffer
}

func startInstance(t *testing.T, database string) *instance {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf(`roles: [directory]
listen: 127.0.0.1:0
public_url: https://mesh.example
agentrelay: {serve: on, registration: open}
network: {forward_listen: 127.0.0.1:0}
store: {postgres: %q}
`, database)
	if err := os.WriteFile(filepath.Join(dir, "agentmesh.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	i := &instance{t: t, cmd: exec.Command(program)}
	i.cmd.Env, i.cmd.Stderr = append(os.Environ(), envInstance+"="+dir), &i.log
	out, err := i.cmd.StdoutPipe()
	if err == nil {
		err = i.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(i.kill)
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		i.kill()
		t.Fatalf("the process ends: %v\n%s", err, i.log.String())
	}
	i.url = "http://" + strings.TrimSpace(address)
	return i
}

func (i *instance) kill() {
	_ = i.cmd.Process.Kill() // it may have ended
	_ = i.cmd.Wait()
}

// send sends a request, and returns the response and its body. header alternates names and values.
func (i *instance) send(method, path, body string, header ...string) (*http.Response, string, error) {
	ctx, cancel := context.WithTimeout(i.t.Context(), 40*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, i.url+path, strings.NewReader(body))
	if err != nil {
		return nil, "", err
	}
	req.Host = "mesh.example"
	req.Header.Set("Content-Type", "application/json")
	for n := 0; n < len(header); n += 2 {
		req.Header.Set(header[n], header[n+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp, string(text), err
}

// TestTakeoverOfInstances: when the process that runs the bridges is killed, another process starts again by itself
// and takes over within five seconds. Nothing that was acknowledged is lost.
func TestTakeoverOfInstances(t *testing.T) { // measures time, so nothing may run beside it
	database := pgtest.Database(t)
	db, err := postgres.Open(t.Context(), postgres.Config{URL: database, Name: "test", LeaseTTL: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}()
	all := []*instance{startInstance(t, database), startInstance(t, database), startInstance(t, database)}
	for round := range 3 {
		agent := fmt.Sprint("agent-", round)
		if resp, body, err := all[round].send("POST", "/register", `{"agent_id":"`+agent+`"}`); err != nil || resp.StatusCode >= 300 {
			t.Fatalf("register at the relay: %v %s, %v", resp, body, err)
		}
		leases, err := db.Leases().List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		holder := -1
		for _, l := range leases {
			for i, p := range all {
				if l.Name == leaseBridges && strings.HasSuffix(l.Holder, ":"+strconv.Itoa(p.cmd.Process.Pid)) {
					holder = i
				}
			}
		}
		if holder < 0 {
			t.Fatalf("no process runs the bridges: %+v", leases)
		}
		all[holder].kill()
		killed := time.Now()
		for i, p := range all {
			for i != holder {
				resp, body, err := p.send("POST", "/register", `{"agent_id":"`+agent+`"}`)
				if err == nil && resp.StatusCode == http.StatusConflict && strings.Contains(body, "agent_id_taken") {
					break // the relay knows the agent
				}
				if time.Since(killed) > 2*takeover {
					t.Fatalf("process %d: %v %s, %v\n%s", i, resp, body, err, p.log.String())
				}
				time.Sleep(20 * time.Millisecond)
			}
		}
		took := time.Since(killed)
		t.Logf("round %d: the relay answers at the others after %v", round, took.Round(time.Millisecond))
		if took > takeover {
			t.Errorf("round %d: the takeover took %v, want at most %v", round, took, takeover)
		}
		all[holder] = startInstance(t, database)
	}
}

// TestPassThroughOfInstances: a sender at one process gets the reply of an agent that polls another one.
func TestPassThroughOfInstances(t *testing.T) { // AM-67
	database := pgtest.Database(t)
	all := []*instance{startInstance(t, database), startInstance(t, database), startInstance(t, database)}
	const id, bearer = "am_reader", "Bearer credential-of-the-reader"
	key := func(seed byte) *signing.PrivateKey { return signing.NewEd25519FromSeed(bytes.Repeat([]byte{seed}, 32)) }
	text := func(name, value string) wire.Member { return wire.Member{Key: name, Value: wire.Text(value)} }
	card := wire.Obj(text("agentmesh", "0.1.0"), text("agent_id", id), text("name", "Reader"), text("endpoint", "https://mesh.example/v1/mailbox/"+id),
		text("public_key", key(1).PublicText()), wire.Member{Key: "capabilities", Value: wire.Texts([]string{"scheduling"})},
		wire.Member{Key: "intents", Value: wire.Texts([]string{"mesh.message"})})
	if resp, body, err := all[0].send("POST", "/v1/agents", string(card.JSON()), "Authorization", bearer); err != nil || resp.StatusCode != 201 {
		t.Fatalf("register: %v %s, %v", resp, body, err)
	}
	message := func(n int, from, to string, by *signing.PrivateKey) string {
		tree, err := by.SignValue(wire.Draft{
			ID: wire.MessageID(fmt.Sprint("msg_", from, n)), Conversation: "conv_1", From: wire.AgentID(from), To: wire.AgentID(to), Time: time.Now(),
			Intent: "mesh.message", Payload: wire.Obj(text("action", "deliver"), wire.Member{Key: "message", Value: wire.Obj(text("body", "hello"))}),
		}.Tree())
		if err != nil {
			t.Fatal(err)
		}
		return string(tree.JSON())
	}
	var took []time.Duration
	for n := range 9 {
		sender, poller, replier := all[n%3], all[(n/3+1)%3], all[(n+n/3)%3]
		reply := message(n, id, "am_writer", key(1))
		polled := make(chan error, 1)
		go func() {
			var doc struct {
				Messages []struct {
					ID      string `json:"relay_id"`
					ReplyBy string `json:"reply_by"`
				}
			}
			resp, body, err := poller.send("GET", "/v1/relay?wait=20", "", "Authorization", bearer)
			if err == nil {
				err = json.Unmarshal([]byte(body), &doc)
			}
			if err != nil || len(doc.Messages) != 1 || doc.Messages[0].ReplyBy == "" {
				polled <- fmt.Errorf("the agent gets %v %s, %w", resp, body, err)
				return
			}
			resp, body, err = replier.send("POST", "/v1/relay/"+doc.Messages[0].ID+"/reply", reply, "Authorization", bearer)
			if err == nil && resp.StatusCode != 200 {
				err = fmt.Errorf("the reply gets %d %s", resp.StatusCode, body)
			}
			polled <- err
		}()
		awaitPoll(t, poller)
		began := time.Now()
		resp, body, err := sender.send("POST", "/v1/mailbox/"+id, message(n, "am_writer", id, key(2)))
		took = append(took, time.Since(began))
		if err != nil || resp.StatusCode != 200 || body != reply {
			t.Errorf("message %d: the sender gets %v %s, %v", n, resp, body, err)
		}
		if err := <-polled; err != nil {
			t.Fatalf("message %d: %v", n, err)
		}
	}
	t.Logf("the replies took %v", took)
}

func awaitPoll(t *testing.T, p *instance) {
	t.Helper()
	for end := time.Now().Add(takeover); ; time.Sleep(20 * time.Millisecond) {
		_, body, err := p.send("GET", "/health", "")
		if err == nil && strings.Contains(body, `"connected":1`) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("no poll waits: %s, %v", body, err)
		}
	}
}
