package mess

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/subprocess"
)

// run runs plain git in the directory. Nothing a stranger wrote is in its arguments.
func (r *dirRemote) run(ctx context.Context, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	env := []string{"GIT_TERMINAL_PROMPT=0", "PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "SSH_AUTH_SOCK=" + os.Getenv("SSH_AUTH_SOCK")}
	res, err := subprocess.Command{Argv: append([]string{"git", "-c", "core.hooksPath=/dev/null"}, args...), Dir: r.dir, Env: env, MaxOutput: 1 << 20}.Run(ctx, nil)
	if err != nil {
		return fmt.Errorf("git %s: %w: %s", args[0], err, strings.TrimSpace(res.Tail))
	}
	return nil
}

// pull brings in what others pushed. What a crash kept us from pushing goes on top of it.
func (r *dirRemote) pull(ctx context.Context) error {
	if !r.git {
		return nil
	}
	err := r.run(ctx, "pull", "-q", "--ff-only")
	if err != nil && r.rebase(ctx) == nil {
		return nil
	}
	return err
}

// rebase puts our commits on top of what others pushed, or leaves everything as it was.
func (r *dirRemote) rebase(ctx context.Context) error {
	err := r.run(ctx, "-c", "user.name=agentmesh", "-c", "user.email=agentmesh@localhost", "pull", "-q", "--rebase")
	if err != nil {
		_ = r.run(ctx, "rebase", "--abort") // where there is none, nothing is to be undone
	}
	return err
}

// publish commits and pushes what was written. A push that came second is repeated once on top of what came first. What
// cannot be pushed is undone: it is said again as a whole, to the thread as it stands then.
func (r *dirRemote) publish(ctx context.Context, ref string) error {
	if !r.git {
		return nil
	}
	if err := r.run(ctx, "add", "-A", "exchange"); err != nil {
		return again(err)
	}
	changed := r.run(ctx, "diff", "--cached", "--quiet") != nil
	if changed {
		if err := r.run(ctx, "-c", "user.name=agentmesh", "-c", "user.email=agentmesh@localhost", "commit", "-q", "-m", "messe-af: "+ref); err != nil {
			return again(err)
		}
	}
	err := r.run(ctx, "push", "-q")
	if err != nil {
		if err = r.rebase(ctx); err == nil {
			err = r.run(ctx, "push", "-q")
		}
	}
	if err != nil && changed {
		err = errors.Join(err, r.run(ctx, "reset", "-q", "--keep", "HEAD~1"))
	}
	return again(err)
}
