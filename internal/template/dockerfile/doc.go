// Package dockerfile reads a Dockerfile and its build context, as Templates are
// built from them. [Parse] checks a Dockerfile, [File.Plan] turns it into steps once
// the environment that it begins with is known, and a [Context] finds the files that
// its COPYs name. Nothing of a Dockerfile is carried out here.
package dockerfile
