package subprocess_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/goldentest"
	"github.com/agentmesh/agentmesh/node/subprocess"
)

// TestMain makes this binary act as the program that the tests run.
func TestMain(m *testing.M) {
	if len(os.Args) != 3 || os.Args[1] != "as" {
		os.Exit(m.Run())
	}
	switch os.Args[2] {
	case "echo":
		io.Copy(os.Stdout, os.Stdin)
	case "environment":
		fmt.Print(strings.Join(os.Environ(), "\n"))
	case "fail":
		fmt.Fprint(os.Stderr, strings.Repeat("x", 10_000)+"the reason")
		os.Exit(3)
	case "flood":
		for {
			os.Stdout.Write(bytes.Repeat([]byte("x"), 64<<10))
		}
	}
	os.Exit(0)
}

func program(name string) subprocess.Command {
	return subprocess.Command{Argv: []string{os.Args[0], "as", name}, MaxOutput: 1 << 10}
}

func TestRun(t *testing.T) {
	hostile := "$(touch /tmp/x) `id` ; as fail\x00\n"
	got, err := program("echo").Run(t.Context(), []byte(hostile))
	if err != nil || string(got.Output) != hostile {
		t.Errorf("echo = %q, %v, want the input", got.Output, err)
	}

	got, err = program("fail").Run(t.Context(), nil)
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 3 {
		t.Errorf("failing program: %v, want exit status 3", err)
	}
	if !strings.HasSuffix(got.Tail, "the reason") || len(got.Tail) > 4<<10 {
		t.Errorf("tail of standard error is %d bytes, ends %q", len(got.Tail), got.Tail[max(0, len(got.Tail)-20):])
	}

	if _, err = program("flood").Run(t.Context(), nil); !errors.Is(err, subprocess.ErrOutputTooLarge) {
		t.Errorf("flood: %v, want ErrOutputTooLarge", err)
	}
	if _, err = (subprocess.Command{Argv: []string{"/no/such/program"}}).Run(t.Context(), nil); err == nil {
		t.Error("a missing program: no error")
	}
	if _, err = (subprocess.Command{}).Run(t.Context(), nil); err == nil {
		t.Error("an empty command: no error")
	}
}

// TestEnvironment: nothing from this process reaches the command, least of all secrets in its environment (AM-74).
func TestEnvironment(t *testing.T) {
	t.Setenv("AGENTMESH_TEST_SECRET", "hunter2")
	got, err := program("environment").Run(t.Context(), nil)
	if err != nil || strings.Contains(string(got.Output), "hunter2") || !strings.HasPrefix(string(got.Output), "PATH=") {
		t.Errorf("environment = %q, %v", got.Output, err)
	}
	c := program("environment")
	c.Env = []string{"ONLY=this"}
	if got, err = c.Run(t.Context(), nil); err != nil || runtime.GOOS != "windows" && string(got.Output) != "ONLY=this" {
		t.Errorf("environment = %q, %v", got.Output, err)
	}
}

// TestKilled: a command that hangs is killed with every process that it started.
func TestKilled(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("looks for the child in /proc")
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	// The shell passes the pid of its child through a pipe, because Run returns output only at the end.
	c := subprocess.Command{Argv: []string{"/bin/sh", "-c", "sleep 600 & echo $! >" + fdPath(in) + "; wait"}, MaxOutput: 1 << 10}
	done := make(chan error, 1)
	go func() {
		_, err := c.Run(ctx, nil)
		done <- err
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	in.Close()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Run = %v, want Canceled", err)
	}
	if !waitGone(t, pid) {
		t.Errorf("process %d outlives its command", pid)
	}
}

// leaveBehind are scripts that end before a process that they started.
var leaveBehind = map[string]string{
	"detached":   `sleep 600 <&- >&- 2>&- & echo $!`,
	"grandchild": `/bin/sh -c 'sleep 600 <&- >&- 2>&- & echo $!'`,
}

// TestNothingIsLeftBehind: after a command succeeds, none of its processes is left, not even one that closed its pipes.
func TestNothingIsLeftBehind(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("looks for the child in /proc")
	}
	for name, script := range leaveBehind {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := subprocess.Command{Argv: []string{"/bin/sh", "-c", script}, MaxOutput: 1 << 10}
			got, err := c.Run(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			pid, err := strconv.Atoi(strings.TrimSpace(string(got.Output)))
			if err != nil {
				t.Fatal(err)
			}
			if !waitGone(t, pid) {
				t.Errorf("process %d outlives its command", pid)
				if left, err := os.FindProcess(pid); err == nil {
					_ = left.Kill()
				}
			}
		})
	}
}

func fdPath(f *os.File) string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), f.Fd()) }

// waitGone reports whether the process ends within the time limit. A zombie that nobody reaps in a container counts as
// ended.
func waitGone(t *testing.T, pid int) bool {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for range 3000 {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if errors.Is(err, os.ErrNotExist) {
			return true
		}
		if _, after, ok := strings.Cut(string(stat), ") "); ok && strings.HasPrefix(after, "Z") {
			return true
		}
		<-tick.C
	}
	return false
}

// TestUser: a process of root runs a command as another user, with none of its own groups. Any other process refuses,
// and no process runs a command as a user that does not exist.
func TestUser(t *testing.T) {
	if runtime.GOOS == "windows" {
		if _, err := subprocess.UserID("Guest"); err == nil {
			t.Error("UserID allows another user on Windows")
		}
		return
	}
	if _, err := subprocess.UserID("no-such-user"); !goldentest.Refuses(t, "an unknown user", err) {
		t.Errorf("UserID of an unknown user: %v", err)
	}
	c := subprocess.Command{Argv: []string{"/bin/sh", "-c", "id -u; id -G"}, MaxOutput: 1 << 10, User: "nobody"}
	want, err := user.Lookup(c.User)
	if err != nil {
		t.Skip("this machine has no user nobody")
	}
	if want.Uid == strconv.Itoa(os.Geteuid()) {
		t.Skip("the test itself runs as nobody")
	}
	got, err := c.Run(t.Context(), nil)
	if os.Geteuid() != 0 {
		if err == nil || !strings.Contains(err.Error(), "may not run a command as the user nobody") {
			t.Errorf("Run = %q, %v, want a refusal", got.Output, err)
		}
		return
	}
	if text := string(got.Output); err != nil || !strings.HasPrefix(text, want.Uid+"\n") || slices.Contains(strings.Fields(text)[1:], "0") {
		t.Errorf("Run as nobody = %q, %v, want the user %s without root's groups", text, err, want.Uid)
	}
}

// TestRunAdvice: the error for a program that the system refuses to run says what to change.
func TestRunAdvice(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("needs modes of files")
	}
	file := filepath.Join(t.TempDir(), "hook")
	for _, mode := range []os.FileMode{0o600, 0o700} {
		if err := errors.Join(os.WriteFile(file, []byte("echo hello\n"), mode), os.Chmod(file, mode)); err != nil {
			t.Fatal(err)
		}
		_, err := subprocess.Command{Argv: []string{file}, MaxOutput: 1}.Run(t.Context(), nil)
		if err == nil || !goldentest.Says(t, mode.String(), strings.ReplaceAll(err.Error(), file, "FILE")) {
			t.Errorf("mode %o: %v", mode, err)
		}
	}
}
