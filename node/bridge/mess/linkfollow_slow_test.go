//go:build slow

package mess

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mess/folder"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/owner"
)

// TestDirectoryIsFollowed: the same in a directory, with and without git: claimed by another, and ended by the envelope
// alone.
func TestDirectoryIsFollowed(t *testing.T) {
	t.Parallel()
	for name, inGit := range map[string]bool{"plain": false, "git": true} {
		t.Run(name, func(t *testing.T) {
			s := newSharedFolder(t, inGit, func(side func(string) *dirRemote) {
				old := &sharedFolder{t: t, side: side, home: &meshNode{bridge: &Bridge{}}}
				old.home.bridge.links.Put(&link{wake: make(chan struct{}, 1), keeper: bridge.NewKeeper(bridge.LinkStatus{}, slog.New(slog.DiscardHandler))})
				done := old.create("neighbour", "{id: old, intent: what was done long ago}")
				old.say("bob", done, "- status: {re: x, code: claimed}")
				old.say("bob", done, "- status: {re: x, code: completed}")
			})
			saw := s.create("neighbour", "{id: saw, intent: lend me a saw}")
			here := s.home.waitThread("lend me a saw")
			task := s.home.task(here, "work/0")
			s.say("bob", saw, "- status: {re: x, code: claimed}")
			s.home.waitStatus(here, thread.Cancelled)
			s.home.waitItem(task, owner.ItemWithdrawn)
			if ref := s.home.findThread("what was done long ago"); ref != "" {
				t.Errorf("what was done before we came is here as %s", ref)
			}

			drill := s.create("neighbour", "{id: drill, intent: lend me a drill}")
			here = s.home.waitThread("lend me a drill")
			s.home.reply(s.home.task(here, "work/0").ID, `{"action":"accept"}`, 200)
			us := s.side("neighbour")
			state := func(ref string) thread.Code {
				if _, err := us.list(t.Context()); err != nil {
					t.Fatal(err)
				}
				v, err := us.view(t.Context(), ref)
				if err != nil {
					t.Fatal(err)
				}
				return v.status
			}
			eventually(t, "the claim in the directory", func() bool { return state(drill) == thread.Claimed })
			s.edit("neighbour", drill, "status: claimed", "status: superseded")
			s.home.waitStatus(here, thread.Cancelled)
		})
	}
}

// edit replaces a text in the file of a thread by hand; "" removes the thread.
func (s *sharedFolder) edit(name, there, old, with string) {
	s.t.Helper()
	r := s.side(name)
	if _, err := r.list(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	root, err := folder.OpenLayout(r.dir)
	if err != nil {
		s.t.Fatal(err)
	}
	defer root.Close()
	at, _ := folder.Find(root, there)
	if old == "" {
		err = root.RemoveAll(at)
	} else {
		file := filepath.Join(at, folder.ThreadFileName(0, there))
		var data []byte
		if data, err = root.ReadFile(file); err == nil {
			err = root.WriteFile(file, []byte(strings.Replace(string(data), old, with, 1)), 0o600)
		}
		_ = root.Chtimes(file, time.Time{}, time.Now().Add(time.Second))
	}
	if err == nil {
		err = r.publish(s.t.Context(), there)
	}
	if err != nil && !os.IsNotExist(err) {
		s.t.Fatal(err)
	}
	s.wakePoll()
}
