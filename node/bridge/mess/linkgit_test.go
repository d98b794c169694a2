package mess

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/bridge/mess/folder"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread/threadtest"
)

// git returns a function that runs git in a folder. Without git it skips the test.
func git(t *testing.T) (run func(dir string, args ...string)) {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not installed")
	}
	return func(dir string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "git", append([]string{"-c", "user.name=t", "-c", "user.email=t@localhost"}, args...)...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
}

// TestGitDirectory: two exchanges without a server share a directory in git that both pull and push.
func TestGitDirectory(t *testing.T) {
	origin := t.TempDir()
	run := git(t)
	run(origin, "init", "-q", "--bare", "-b", "main")
	side := func(name string) *dirRemote {
		dir := filepath.Join(t.TempDir(), "clone")
		run(filepath.Dir(dir), "clone", "-q", origin, dir)
		return &dirRemote{dir: dir, name: name, git: true}
	}
	us := side("us")
	run(us.dir, "commit", "-q", "--allow-empty", "-m", "begin")
	run(us.dir, "push", "-q", "origin", "HEAD:main")
	them := side("them")
	ctx := t.Context()
	ref, err := us.create(ctx, "", mustParse(t, "- request: {id: a, intent: look, confirm_before: true}")[0].Body)
	if err != nil {
		t.Fatal(err)
	}
	list, err := them.list(ctx)
	if err != nil || len(list) != 1 || list[0].ref != ref {
		t.Fatalf("they see %v, %v", list, err)
	}
	if err := them.post(ctx, "", ref, mustParse(t, "- status: {re: x, code: claimed}")); err != nil {
		t.Fatal(err)
	}
	if err := them.post(ctx, "", ref, mustParse(t, "- status: {re: x, code: completed}")); err == nil {
		t.Error("confirm_before has a way around it")
	}
	if err := us.post(ctx, "", ref, mustParse(t, "- status: {re: x, code: completed}")); err == nil {
		t.Error("the requester completed it")
	}
	if list, err = us.list(ctx); err != nil || !strings.HasPrefix(list[0].updated, "state=executing") {
		t.Errorf("we see %v, %v", list, err)
	}
	v, err := us.view(ctx, ref)
	if err != nil || len(v.messages) != 2 || v.messages[1].From != "them" || v.status != thread.Claimed {
		t.Errorf("messages = %+v, %v", v, err)
	}
}

// TestGitDirectoryRecovers: a message that cannot be pushed is undone and is sent once in the end. Unpushed commits and
// pushes of others do not block a directory.
func TestGitDirectoryRecovers(t *testing.T) {
	base := t.TempDir()
	origin := filepath.Join(base, "origin")
	run := git(t)
	run(base, "init", "-q", "--bare", "-b", "main", origin)
	run(base, "clone", "-q", origin, "us")
	us := &dirRemote{dir: filepath.Join(base, "us"), name: "us", git: true}
	run(us.dir, "commit", "-q", "--allow-empty", "-m", "begin")
	run(us.dir, "push", "-q", "origin", "HEAD:main")
	run(base, "clone", "-q", origin, "them")
	them := &dirRemote{dir: filepath.Join(base, "them"), name: "them", git: true}
	ctx := t.Context()
	ref, err := them.create(ctx, "", mustParse(t, "- request: {id: a, intent: look}")[0].Body)
	if err != nil {
		t.Fatal(err)
	}
	claim := mustParse(t, "- status: {re: x, code: claimed}")
	hook := filepath.Join(origin, "hooks", "pre-receive")
	// it can be read, and accepts no push
	if err := os.WriteFile(hook, []byte("#!/bin/sh\nexit 1\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := us.post(ctx, "", ref, claim); err == nil {
		t.Fatal("it was pushed")
	}
	if v, err := us.view(ctx, ref); err != nil || len(v.messages) != 1 {
		t.Errorf("what was not pushed stands in the file: %d messages, %v", len(v.messages), err)
	}
	if err := os.Remove(hook); err != nil {
		t.Fatal(err)
	}
	run(us.dir, "commit", "-q", "--allow-empty", "-m", "left behind")
	if err := them.post(ctx, "", ref, mustParse(t, "- note: {re: x, text: by the window}")); err != nil {
		t.Fatal(err)
	}
	if _, err := us.list(ctx); err != nil {
		t.Fatalf("a commit that was left behind: %v", err)
	}
	for range 2 { // the second time as after a crash
		if err := us.post(ctx, "", ref, claim); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := them.list(ctx); err != nil {
		t.Fatal(err)
	}
	v, err := them.view(ctx, ref)
	if err != nil || len(v.messages) != 3 || v.messages[2].From != "us" {
		t.Errorf("messages = %+v, %v", v, err)
	}
	// Both change the same file: no conflict remains.
	run(us.dir, "commit", "-q", "--allow-empty", "-m", "nothing")
	file := filepath.Join(us.dir, "exchange", thread.FolderOf(thread.Claimed), ref, folder.ThreadFileName(0, ref))
	if err := os.WriteFile(file, []byte("other\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	run(us.dir, "commit", "-q", "-a", "-m", "in the way")
	if err := them.post(ctx, "", ref, mustParse(t, "- note: {re: x, text: now}")); err != nil {
		t.Fatal(err)
	}
	if _, err := us.list(ctx); err == nil {
		t.Error("a conflict was merged")
	}
	if exists(filepath.Join(us.dir, ".git", "rebase-merge")) {
		t.Error("a rebase was left half done")
	}
}

// TestInterruptedPush: a message whose push is interrupted is undone like one that is refused, so that the directory
// takes what others push, and the message is sent later.
func TestInterruptedPush(t *testing.T) {
	base := t.TempDir()
	origin := filepath.Join(base, "origin")
	run := git(t)
	run(base, "init", "-q", "--bare", "-b", "main", origin)
	var sides [2]*dirRemote
	for i, name := range []string{"us", "them"} {
		run(base, "clone", "-q", origin, name)
		sides[i] = &dirRemote{dir: filepath.Join(base, name), name: name, git: true}
	}
	us, them := sides[0], sides[1]
	ref, err := them.create(t.Context(), "", mustParse(t, "- request: {id: a, intent: look}")[0].Body)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := us.list(t.Context()); err != nil {
		t.Fatal(err)
	}
	hook, entered, leave := filepath.Join(origin, "hooks", "pre-receive"), filepath.Join(base, "entered"), filepath.Join(base, "leave")
	script := fmt.Sprintf("#!/bin/sh\ntouch %s\nwhile ! [ -e %s ]; do sleep 0.1; done\nexit 1\n", entered, leave)
	if err := os.WriteFile(hook, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	claim := mustParse(t, "- status: {re: x, code: claimed}")
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() { failed <- us.post(ctx, "", ref, claim) }()
	eventually(t, "the push", func() bool { return exists(entered) })
	cancel()
	if err := <-failed; !isRetry(err) {
		t.Errorf("the interrupted push: %v", err)
	}
	if err := errors.Join(os.WriteFile(leave, nil, 0o600), os.Remove(hook)); err != nil {
		t.Fatal(err)
	}
	if err := them.post(t.Context(), "", ref, mustParse(t, "- note: {re: x, text: by the window}")); err != nil {
		t.Fatal(err)
	}
	if _, err := us.list(t.Context()); err != nil {
		t.Fatalf("after the push of somebody else: %v", err)
	}
	if err := us.post(t.Context(), "", ref, claim); err != nil {
		t.Fatal(err)
	}
	if v, err := us.view(t.Context(), ref); err != nil || len(v.messages) != 3 || v.holder != "us" {
		t.Errorf("the thread is %+v, %v", v, err)
	}
}

// TestEmptyGitDirectory: with two clones of an empty repository, the first request creates the first commit.
func TestEmptyGitDirectory(t *testing.T) {
	base := t.TempDir()
	origin := filepath.Join(base, "origin")
	run := git(t)
	run(base, "init", "-q", "--bare", "-b", "main", origin)
	side := func(name string) *dirRemote {
		run(base, "clone", "-q", origin, name)
		return &dirRemote{dir: filepath.Join(base, name), name: name, git: true}
	}
	us, them, third := side("us"), side("them"), side("third")
	ctx := t.Context()
	for _, r := range []*dirRemote{us, them} {
		if list, err := r.list(ctx); err != nil || len(list) > 0 {
			t.Fatalf("an empty directory: %v, %v", list, err)
		}
	}
	hook := filepath.Join(origin, "hooks", "pre-receive")
	// it can be read, and accepts no push
	if err := os.WriteFile(hook, []byte("#!/bin/sh\nexit 1\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	request := mustParse(t, "- request: {intent: look}")[0].Body
	if _, err := us.create(ctx, "", request); err == nil {
		t.Fatal("it was pushed")
	}
	if list, err := us.list(ctx); err != nil || len(list) > 0 {
		t.Errorf("what was not pushed is there: %v, %v", list, err)
	}
	if err := os.Remove(hook); err != nil {
		t.Fatal(err)
	}
	ref, err := us.create(ctx, "", request)
	if err != nil {
		t.Fatal(err)
	}
	if err := them.post(ctx, "", ref, mustParse(t, "- status: {re: x, code: claimed}")); err != nil {
		t.Fatal(err)
	}
	if list, err := us.list(ctx); err != nil || len(list) != 1 || !strings.HasPrefix(list[0].updated, "state=executing") {
		t.Errorf("we see %v, %v", list, err)
	}
	// A participant that polls for the first time when there is something.
	if list, err := third.list(ctx); err != nil || len(list) != 1 {
		t.Errorf("the third sees %v, %v", list, err)
	}
}

// TestTwoBeginAGitDirectory: both begin at the same moment, and both requests exist in the end.
func TestTwoBeginAGitDirectory(t *testing.T) {
	base := t.TempDir()
	origin := filepath.Join(base, "origin")
	run := git(t)
	run(base, "init", "-q", "--bare", "-b", "main", origin)
	var sides [2]*dirRemote
	for i, name := range []string{"us", "them"} {
		run(base, "clone", "-q", origin, name)
		sides[i] = &dirRemote{dir: filepath.Join(base, name), name: name, git: true}
	}
	errs := make(chan error, len(sides))
	for _, r := range sides {
		go func() {
			_, err := r.create(t.Context(), "", mustParse(t, "- request: {id: "+r.name+", intent: look}")[0].Body)
			for n := 0; err != nil && n < 3; n++ { // as the outbox does it
				_, err = r.create(t.Context(), "", mustParse(t, "- request: {id: "+r.name+", intent: look}")[0].Body)
			}
			errs <- err
		}()
	}
	for range sides {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	for _, r := range sides {
		if list, err := r.list(t.Context()); err != nil || len(list) != 2 {
			t.Errorf("%s sees %v, %v", r.name, list, err)
		}
	}
}

// BenchmarkDirectoryLinkCreate creates a thread in a directory of 10,000.
func BenchmarkDirectoryLinkCreate(b *testing.B) {
	dir := b.TempDir()
	threadtest.WriteThreads(b, dir, "received", 10_000)
	r := &dirRemote{dir: dir, name: "us"}
	n := 0
	for b.Loop() {
		n++
		if _, err := r.create(b.Context(), "", mustParse(b, fmt.Sprintf("- request: {id: a%d, intent: look}", n))[0].Body); err != nil {
			b.Fatal(err)
		}
	}
}

// TestCommitLeftBehind: a crash after a commit and before the push leaves a message in our clone alone. The next attempt
// pushes it, and says it only once.
func TestCommitLeftBehind(t *testing.T) {
	base := t.TempDir()
	run := git(t)
	run(base, "init", "-q", "--bare", "-b", "main", "origin")
	side := func(name string) *dirRemote {
		run(base, "clone", "-q", "origin", name)
		return &dirRemote{dir: filepath.Join(base, name), name: name, git: true}
	}
	them := side("them")
	ref, err := them.create(t.Context(), "", mustParse(t, "- request: {id: a, intent: look}")[0].Body)
	if err != nil {
		t.Fatal(err)
	}
	us := side("us")
	claim := mustParse(t, "- status: {re: x, code: claimed}")
	us.git = false
	if err := us.post(t.Context(), "", ref, claim); err != nil {
		t.Fatal(err)
	}
	run(us.dir, "add", "-A")
	run(us.dir, "commit", "-q", "-m", "left behind")
	us.git = true
	l, _, _ := newListRemote(t)
	l.remote = us
	if overtaken, err := l.postOnce(t.Context(), "", ref, claim, true); overtaken || err != nil {
		t.Errorf("postOnce() = %v, %v", overtaken, err)
	}
	if _, err := them.list(t.Context()); err != nil {
		t.Fatal(err)
	}
	if v, err := them.view(t.Context(), ref); err != nil || v.status != thread.Claimed || len(v.messages) != 2 {
		t.Errorf("they see %+v, %v", v, err)
	}
}
