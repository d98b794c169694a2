package mess

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/subprocess"
)

// runGit runs git in the directory. The only text of strangers in its arguments is the ref of a thread, whose form is
// checked.
func (r *dirRemote) runGit(ctx context.Context, args ...string) error {
	_, err := r.gitOutput(ctx, args...)
	return err
}

func (r *dirRemote) gitOutput(ctx context.Context, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	env := []string{"GIT_TERMINAL_PROMPT=0", "PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "SSH_AUTH_SOCK=" + os.Getenv("SSH_AUTH_SOCK")}
	res, err := subprocess.Command{Argv: append([]string{"git", "-c", "core.hooksPath=/dev/null", "-c", "user.name=agentmesh", "-c", "user.email=agentmesh@localhost"}, args...), Dir: r.dir, Env: env, MaxOutput: 1 << 20}.Run(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("git %s: %w: %s", args[0], err, strings.TrimSpace(res.Tail))
	}
	return res.Output, nil
}

// pull fetches the commits of others, and rebases ours that a crash left unpushed. It accepts an empty repository.
func (r *dirRemote) pull(ctx context.Context) error {
	if !r.git {
		return nil
	}
	err := r.runGit(ctx, "pull", "-q", "--ff-only")
	if err != nil && (r.isRemoteEmpty(ctx) || r.rebase(ctx) == nil) {
		return nil
	}
	return err
}

func (r *dirRemote) isRemoteEmpty(ctx context.Context) bool {
	heads, err := r.gitOutput(ctx, "ls-remote", "--heads")
	return err == nil && len(heads) == 0
}

// push pushes our commits. The first push from a clone of an empty repository creates the branch there and tracks it.
func (r *dirRemote) push(ctx context.Context) error {
	if r.runGit(ctx, "rev-parse", "-q", "--verify", "@{u}") != nil {
		return r.runGit(ctx, "push", "-q", "-u", "origin", "HEAD")
	}
	return r.runGit(ctx, "push", "-q")
}

// rebase puts our commits on top of what others pushed, or leaves everything unchanged.
func (r *dirRemote) rebase(ctx context.Context) error {
	err := r.runGit(ctx, "pull", "-q", "--rebase")
	if err != nil {
		_ = r.runGit(context.WithoutCancel(ctx), "rebase", "--abort") // fails if no rebase was started, and then changes nothing
	}
	return err
}

// publish commits the written files and pushes the commit. If somebody else pushed first, it rebases the commit and
// pushes once more. If the commit cannot be pushed, publish undoes it; the outbox then sends the whole message again
// later, to the thread in its state at that time.
func (r *dirRemote) publish(ctx context.Context, ref string) error {
	if !r.git {
		return nil
	}
	uncanceled := context.WithoutCancel(ctx) // an interrupted commit would block the directory
	if err := r.runGit(uncanceled, "add", "-A", "exchange"); err != nil {
		return client.RetryLater(err)
	}
	changed := r.runGit(uncanceled, "diff", "--cached", "--quiet") != nil // it fails if there are changes
	if changed {
		if err := r.runGit(uncanceled, "commit", "-q", "-m", "messe-af: "+ref); err != nil {
			return client.RetryLater(err)
		}
	}
	err := r.push(ctx)
	if err != nil {
		if rebaseErr := r.rebase(ctx); rebaseErr != nil {
			err = errors.Join(err, rebaseErr)
		} else {
			err = r.push(ctx)
		}
	}
	if err != nil && changed {
		err = errors.Join(err, r.undo(uncanceled))
	}
	return client.RetryLater(err)
}

// undo removes the newest commit. Undoing the first commit leaves the files in place.
func (r *dirRemote) undo(ctx context.Context) error {
	if r.runGit(ctx, "rev-parse", "-q", "--verify", "HEAD~1") == nil {
		return r.runGit(ctx, "reset", "-q", "--keep", "HEAD~1")
	}
	if err := r.runGit(ctx, "update-ref", "-d", "HEAD"); err != nil {
		return err
	}
	return r.runGit(ctx, "reset", "-q")
}
