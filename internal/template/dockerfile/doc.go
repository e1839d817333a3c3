// Package dockerfile parses a Dockerfile and its build context for Template builds.
// [Parse] checks a Dockerfile, [File.Plan] converts it to steps once the environment of
// its base image is known, and a [Context] finds the files of its COPYs. This package
// does not execute a Dockerfile.
package dockerfile
