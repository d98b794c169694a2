//go:build slow

package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// insideMachine is the variable that tells this test that it runs in namespaces of its own.
const insideMachine = "AGENTMESH_TEST_INSIDE_MACHINE"

// TestRunADirectory plays docs/run-a-directory.md on an empty machine: in namespaces for the network and for mounts,
// with a name server and a certificate authority of its own. Commands that quickstart prints run as printed.
func TestRunADirectory(t *testing.T) {
	if os.Getenv(insideMachine) == "" {
		runInsideMachine(t)
		return
	}
	dir := t.TempDir()
	m := newMachine(t, dir)

	shell := m.shell(t)
	text := strings.Join(blocks(t, "docs/run-a-directory.md", "<!-- run by TestRunADirectory -->\n```sh"), "")
	first, rest, _ := strings.Cut(text, "\n")
	if !strings.Contains(first, " quickstart directory ") || strings.Count(rest, "\n") < 15 {
		t.Fatalf("the page has other commands than this test expects:\n%s", text)
	}
	printed := shell(first + "\n")
	for _, want := range []string{"mesh.example.org. A <the public IPv4 address>\n", "ufw allow 80/tcp", "https://mesh.example.org/readyz"} {
		if !strings.Contains(printed, want) {
			t.Errorf("quickstart does not print %q:\n%s", want, printed)
		}
	}
	steps := regexp.MustCompile(`(?m)^    ((?:useradd|chown|cp|systemctl) .*\n)`).FindAllStringSubmatch(printed, -1)
	if len(steps) != 4 {
		t.Fatalf("quickstart prints %d commands for the service, want 4:\n%s", len(steps), printed)
	}
	for _, step := range steps {
		shell(step[1])
	}
	rest = regexp.MustCompile(`(?m)^(agentmesh .*(?: serve| mirror .*))$`).ReplaceAllString(rest, "$1 >>background.log 2>&1 &\nsleep 1")
	rest = strings.Replace(rest, "\nmesh cards list\n", "\nfor i in $(seq 100); do mesh cards list | grep Sarah && break; sleep .2; done; mesh cards list\n", 1)
	out := shell(rest)
	for _, want := range []string{"Sarah's agent", "for the class", "spam.example", "every transcript is complete", `"status":"ok"`} {
		if !strings.Contains(out, want) {
			t.Errorf("the page's commands do not print %q:\n%s", want, out)
		}
	}
	crontab := regexp.MustCompile(`(?m)^    17 3 \* \* \* (.*)$`).FindStringSubmatch(printed)
	if crontab == nil {
		t.Fatalf("quickstart prints no line for a crontab:\n%s", printed)
	}
	shell(strings.ReplaceAll(crontab[1], `\%`, "%") + "\nls -l /var/backups/agentmesh-*.zip\n")

	waitFor(t, "the mirror to list the member", func() bool {
		resp, err := http.Get("http://127.0.0.1:3242/v1/agents")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		list, _ := io.ReadAll(resp.Body)
		return strings.Contains(string(list), "Sarah")
	})
	// A second member, whose message waits in Sarah's mailbox while her node is away.
	shell(`agentmesh --data tom quickstart agent --name Tom --join "$(cat class.link)" --yes
agentmesh --data tom serve --listen 127.0.0.1:3143 >>background.log 2>&1 &
sleep 1
id=$(agentmesh --data sarah keys show --json | sed -n 's/.*"agent_id": "\(.*\)".*/\1/p')
for i in $(seq 100); do agentmesh --data tom status | grep 'registered, expires' && break; sleep .2; done
agentmesh --data tom send $id 'Hello Sarah'
for i in $(seq 100); do agentmesh --data sarah approvals | grep Tom && break; sleep .2; done
agentmesh --data sarah approvals | grep Tom
`)
}

// runInsideMachine runs the calling test again, in namespaces that end with it.
func runInsideMachine(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can make a network namespace")
	}
	if out, err := exec.Command("unshare", "-nm", "true").CombinedOutput(); err != nil {
		t.Skipf("this machine has no namespaces: %v %s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), "unshare", "-nmpf", "--mount-proc", "--kill-child", os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), insideMachine+"=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	} else if strings.Contains(string(out), "--- SKIP") {
		t.Skipf("%s", out)
	}
}

// machine is an empty Linux machine: this one, with other files and another network.
type machine struct{ dir string }

func newMachine(t *testing.T, dir string) *machine {
	t.Helper()
	m := &machine{dir}
	command := func(name string, args ...string) {
		t.Helper()
		if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
			t.Skipf("cannot make a machine: %s %v: %v %s", name, args, err, out)
		}
	}
	write := func(name, content string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(name, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
	}
	agentmesh, err := os.ReadFile(agentmeshBinary(os.Environ()))
	if err != nil {
		t.Fatal(err)
	}
	trusted, err := os.ReadFile("/etc/ssl/certs/ca-certificates.crt")
	if err != nil {
		t.Skipf("cannot make a machine: %v", err)
	}
	command("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", dir)
	t.Cleanup(func() { _ = exec.Command("umount", "-l", dir).Run() }) // t.TempDir removes the mount point
	for _, name := range []string{"etc", "work", "home"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	command("mount", "-t", "overlay", "overlay", "-o", "lowerdir=/etc,upperdir="+dir+"/etc,workdir="+dir+"/work", "/etc")
	for _, path := range []string{"/var/lib", "/var/backups", "/usr/local/bin"} {
		command("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", path)
	}
	command("ip", "link", "set", "lo", "up")
	command("ip", "addr", "add", "93.184.216.34/32", "dev", "lo")

	p := newPebble(t, 90*24*time.Hour)
	p.httpPort, p.tlsPort = "80", "443"
	p.dns = serveDNS(t, "127.0.0.1:53", [4]byte{93, 184, 216, 34})
	p.start(t)
	own, err := os.ReadFile(p.root)
	if err != nil {
		t.Fatal(err)
	}
	write("/etc/resolv.conf", "nameserver 127.0.0.1\noptions use-vc\n", 0o644)
	write("/etc/ssl/certs/ca-certificates.crt", string(trusted)+"\n"+string(own)+"\n"+string(p.rootFile(t)), 0o644)
	write("/usr/local/bin/agentmesh", string(agentmesh), 0o755)
	write(filepath.Join(dir, "home", "agentmesh"), string(agentmesh), 0o755) // the program of the upgrade
	write("/usr/local/bin/sudo", "#!/bin/bash\nset -e\n[ \"$1\" = -u ]\nexec setpriv --reuid \"$2\" --regid \"$2\" --clear-groups \"${@:3}\"\n", 0o755)
	write("/usr/local/bin/systemctl", fmt.Sprintf(systemctl, dir, p.directory), 0o755)
	return m
}

// systemctl is a program that starts the service as its unit says.
const systemctl = `#!/bin/bash
set -eu
unit=/etc/systemd/system/agentmesh.service pid=%[1]s/pid
value() { sed -n "s/^$1=//p" $unit; }
if [ -f $pid ]; then kill $(cat $pid); while readlink /proc/$(cat $pid)/exe >/dev/null; do sleep .1; done; fi
[ "${!#}" = agentmesh ]
env "$(value Environment)" AGENTMESH_TLS_AUTHORITY=%[2]s setpriv --reuid $(value User) --regid $(value Group) --clear-groups \
  --inh-caps +net_bind_service --ambient-caps +net_bind_service $(value ExecStart) >>%[1]s/service.log 2>&1 &
echo $! >$pid
`

// shell returns a function that runs commands of root, one after another, and returns what they print. The commands of
// one call stop at the first error.
func (m *machine) shell(t *testing.T) func(commands string) string {
	return func(commands string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-xc", commands)
		cmd.Dir, cmd.WaitDelay = filepath.Join(m.dir, "home"), time.Second
		cmd.Env = []string{"PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + cmd.Dir}
		var log strings.Builder
		cmd.Stderr = &log
		out, err := cmd.Output()
		if err != nil {
			service, _ := os.ReadFile(filepath.Join(m.dir, "service.log"))
			background, _ := os.ReadFile(filepath.Join(m.dir, "home", "background.log"))
			t.Fatalf("%v\n%s\n%s\nservice:\n%s\nbackground:\n%s", err, log.String(), out, service, background)
		}
		return string(out)
	}
}
