// Package rest serves an exchange over HTTP (MESS section 10): for executors and requesters with a key, and for the owner, who needs
// none.
package rest
