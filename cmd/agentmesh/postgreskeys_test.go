//go:build slow

package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store/postgres/pgtest"
)

// keyInstances are instances of one node with one key file, on one database.
type keyInstances struct {
	t    *testing.T
	args []string // of serve
}

func newKeyInstances(t *testing.T) keyInstances {
	server := pgtest.New(t)
	key, err := datadir.GenerateKey("age")
	file := filepath.Join(t.TempDir(), "shared.key")
	if err == nil {
		err = signing.WriteKeyFile(file, key, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	return keyInstances{t, []string{
		"--roles=directory,node", "--name=A", "--set=access.mode=open", "--set=store.postgres=" + server.URL("postgres"), "--set=store.key_file=" + file,
	}}
}

// start starts an instance with this data directory, or with a new one.
func (k keyInstances) start(data string) (*serveProcess, string, error) {
	if data == "" {
		data = filepath.Join(k.t.TempDir(), "data")
	}
	s, err := startServe(data, k.args, os.Environ())
	if err == nil {
		k.t.Cleanup(func() { s.Process.Kill(); s.Wait() })
	}
	return s, data, err
}

func (k keyInstances) show(data string) (keys publicKeys) {
	k.t.Helper()
	code, out, errOut := runCommand("--data", data, "--json", "keys", "show")
	if err := json.Unmarshal([]byte(out), &keys); code != 0 || err != nil {
		k.t.Fatalf("keys show: %d, %v, %s", code, err, errOut)
	}
	return keys
}

// TestInstancesStartAtOnce: two instances that start at the same time on an empty database are one agent.
func TestInstancesStartAtOnce(t *testing.T) {
	t.Parallel()
	k := newKeyInstances(t)
	var starting sync.WaitGroup
	var data [2]string
	for i := range data {
		starting.Go(func() {
			var err error
			if _, data[i], err = k.start(""); err != nil {
				t.Error(err)
			}
		})
	}
	starting.Wait()
	if t.Failed() {
		return
	}
	if a, b := k.show(data[0]), k.show(data[1]); a != b {
		t.Errorf("two instances have the keys %+v and %+v", a, b)
	}
}

// TestKillDuringRotation kills an instance while it rotates the key, at another moment each time. Afterwards, a
// running instance and a new one have the same key, which is that of the agent.
func TestKillDuringRotation(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("no SIGKILL on Windows")
	}
	if testing.Short() {
		t.Skip("-short")
	}
	k := newKeyInstances(t)
	_, stays, err := k.start("")
	if err != nil {
		t.Fatal(err)
	}
	rotate := func(data string) (took time.Duration, err error) {
		api := daemon.Running(t.Context(), data)
		if api == nil {
			return 0, errors.New("the owner API does not answer")
		}
		defer api.Close()
		began := time.Now()
		_, err = daemon.Raw(t.Context(), api, owner.RotateKey.Call())
		return time.Since(began), err
	}
	took, err := rotate(stays)
	if err != nil {
		t.Fatal(err)
	}
	const rounds = 6
	last, data, rotated := k.show(stays), "", 0
	for round := range rounds {
		var s *serveProcess
		if s, data, err = k.start(data); err != nil {
			t.Fatal(err)
		}
		if restarted := k.show(data); restarted != last {
			t.Fatalf("after a kill and a new start the agent is %+v, elsewhere %+v", restarted, last)
		}
		done := make(chan error, 1)
		go func() {
			_, err := rotate(data)
			done <- err
		}()
		if round == rounds-1 { // at least one rotation is stored
			<-done
			done <- nil
		} else {
			<-time.After(took * time.Duration(round) / rounds)
		}
		s.Process.Kill()
		s.Wait()
		<-done // an error, unless the rotation was faster
		fresh, dir, err := k.start("")
		if err != nil {
			t.Fatal(err)
		}
		now := k.show(dir) // from the database alone
		fresh.Process.Kill()
		fresh.Wait()
		for end := time.Now().Add(10 * time.Second); k.show(stays) != now; {
			if time.Now().After(end) {
				t.Fatalf("round %d: an instance that serves has not got the key %s", round, now.Fingerprint)
			}
		}
		if now.AgentID != last.AgentID || !now.Derived || now.AgeRecipient != last.AgeRecipient {
			t.Fatalf("after round %d the agent is %+v, before %+v", round, now, last)
		}
		if now.Fingerprint != last.Fingerprint {
			rotated++
		}
		last = now
	}
	if rotated == 0 {
		t.Error("no rotation was stored")
	}
	t.Logf("%d of %d rotations were stored before the kill", rotated, rounds)
}
